"""The part of a layer that looks at one token alone.

Source: Shazeer 2020 (arXiv:2002.05202), the SwiGLU variant.
"""

from torch import nn
from torch.nn import functional as F

from qwen.product import product, random_matrix


class Linear(nn.Module):
    """x [..., in] -> [..., out]: x @ weight.T, without a bias.

    `weight` [out, in] may be stored in a smaller type than x: the
    product is computed in x's type.
    """

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(random_matrix(outputs, inputs))

    def forward(self, x):
        return product(x, self.weight)


class MLP(nn.Module):
    """x [..., H] -> [..., H] through I hidden units with a silu gate."""

    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size)
        self.up_proj = Linear(hidden_size, intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
