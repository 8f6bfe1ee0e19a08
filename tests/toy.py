"""Small models with random weights, no two configurations alike.

    config = toy_config(linear_num_value_heads=6, linear_conv_kernel_dim=2)
    model = toy_model(toy_config(), seed=3)

The weights are far from their first values: every norm has its own gain,
every head its own decay, and logits are of order 1. Mixers write little
to the residual stream: the gated norm blows up the rounding of a read that
happens to be near zero, and here such reads don't feed one another.
"""

from contextlib import contextmanager

import pytest
import torch
from tiny_checkpoints import tiny_config

from qwen.cache import AttentionState
from qwen.config import Config
from qwen.model import Model

VOCAB = 37


def toy_dict(**changes):
    """A flat config as in `config.json`; layers lin, lin, lin, full."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 40}
    config = tiny_config(**sizes | {"tie_word_embeddings": False} | changes)
    config["num_hidden_layers"] = len(config["layer_types"])
    return config


def rope(partial, **more):
    parameters = {"rope_type": "default", "rope_theta": 10000.0}
    return parameters | {"partial_rotary_factor": partial} | more


def toy_config(**changes):
    return Config.from_dict(toy_dict(**changes))


def toy_model(config=None, seed=0):
    return shake(Model(config or toy_config()), seed).eval()


@torch.no_grad()
def shake(model, seed=0):
    """Random weights for any model with the checkpoint's names."""
    torch.manual_seed(seed)
    for name, p in model.named_parameters():
        if name.endswith("A_log"):
            p.uniform_(0.05, 4).log_()
        elif name.endswith("dt_bias"):
            p.uniform_(-5, 0)
        elif name.endswith("conv1d.weight"):
            p.normal_(0, 0.6)
        elif name.endswith("linear_attn.norm.weight"):
            p.normal_(1, 0.3)
        elif name.endswith("norm.weight"):
            p.normal_(0, 0.3)
        elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
            p.normal_(0, p.shape[-1] ** -0.5)
        elif name.endswith(("o_proj.weight", "out_proj.weight")):
            p.normal_(0, 0.1 * p.shape[-1] ** -0.5)
        else:
            p.normal_(0, p.shape[-1] ** -0.5)
    return model


def random_ids(rows, length, seed=0, vocab=VOCAB):
    random = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (rows, length), generator=random)


def cuts(length, pieces, random):
    """`pieces` slices that together are range(length); some are empty."""
    ends = torch.randint(0, length + 1, (pieces - 1,), generator=random)
    ends = [0, *sorted(ends.tolist()), length]
    return [slice(a, b) for a, b in zip(ends, ends[1:])]


@contextmanager
def dirty_memory():
    """Fresh memory is full of sevens, so that reading it shows."""
    empty, new_empty = torch.empty, torch.Tensor.new_empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(7))
        patch.setattr(
            torch.Tensor,
            "new_empty",
            lambda *a, **k: new_empty(*a, **k).fill_(7),
        )
        yield


def row_state(state, row):
    """What a state holds of one row: tensors by name, pads left out."""
    real, held = state.mask[row], {}
    for i, layer in enumerate(state.layers):
        if isinstance(layer, AttentionState):
            held[f"k{i}"] = layer.k[row][:, real]
            held[f"v{i}"] = layer.v[row][:, real]
        else:
            held[f"conv{i}"], held[f"S{i}"] = layer.conv[row], layer.S[row]
    return held


def state_error(a, b):
    """The largest |a - b| / (1 + |b|) of all numbers in two `row_state`s."""
    assert {n: x.shape for n, x in a.items()} == {
        n: x.shape for n, x in b.items()
    }
    errors = [(a[n] - b[n]).abs() / (1 + b[n].abs()) for n in a]
    # one maximum for all: Python's own would step over a NaN
    return torch.cat([torch.zeros(1), *(e.flatten() for e in errors)]).max()
