"""A model of 16 bits a weight that an x86 CPU reads as fast as it can.

Source: FBGEMM (Khudia et al. 2021, arXiv:2101.05615), which PyTorch brings
along.
"""

import torch
from torch import nn

from qwen.embedding import LMHead
from qwen.mlp import Linear
from qwen.model import Model
from qwen.weights import find_model, load_weights


class Packed(nn.Module):
    """x [..., in] fp32 -> x @ weight.T [..., out] fp32, weight kept in fp16.

    Each number of `weight` [out, in] is widened as it is read, so that one
    token costs half the memory traffic of fp32, and the arithmetic is
    fp32. fp16 holds a bf16 number from 2 ** -14 to 65504 exactly; below,
    it is rounded to a multiple of 2 ** -24. No gradients. Raises
    ValueError where PyTorch has no FBGEMM, and for a number too large.
    """

    def __init__(self, weight):
        super().__init__()
        if "fbgemm" not in torch.backends.quantized.supported_engines:
            raise ValueError("packing needs FBGEMM, which this PyTorch lacks")
        if max(weight.max(), -weight.min()) > 65504:
            raise ValueError("a weight is too large for fp16")
        pack = torch.ops.quantized.linear_prepack_fp16
        # In stripes of rows: only one is there in fp32 at a time. So large
        # a buffer goes back to the system when it is freed; smaller ones
        # would leave holes between the packed stripes.
        wide, self.stripes = torch.empty(8192, weight.shape[1]), []
        for rows in weight.detach().split(8192):
            wide[: len(rows)] = rows
            self.stripes.append(pack(wide[: len(rows)], None))

    def forward(self, x):
        apply = torch.ops.quantized.linear_dynamic_fp16
        y = [apply(x, stripe) for stripe in self.stripes]
        return y[0] if len(y) == 1 else torch.cat(y, dim=-1)


def pack(model):
    """Replace every matrix but the embedding's by its Packed form."""
    for module in model.modules():  # the head comes first
        for name, child in module.named_children():
            if isinstance(child, Linear | LMHead):
                setattr(module, name, Packed(child.weight))


def load_packed(path=None):
    """The packed model of a checkpoint folder (see `find_model`), for a CPU.

    There is one copy of each matrix in memory. A tied embedding stays in
    its file, of which only the rows looked up are read.
    """
    path = find_model(path)
    model = Model.from_pretrained(path, torch.bfloat16)
    # read anew: the head's table goes when it is packed
    table = load_weights(path, torch.bfloat16)["embed_tokens.weight"]
    model.embed_tokens.weight = nn.Parameter(table, requires_grad=False)
    pack(model)
    return model
