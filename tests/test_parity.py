# Run with: python -m pytest tests/test_parity.py
"""Logits of transformers' Qwen3.5, with the same random weights, in fp32.

transformers runs its pure torch form of the rule: chunks of 64 tokens in
`torch_chunk_gated_delta_rule`, with no package of kernels behind it.
"""

import json
from pathlib import Path

import pytest
import torch
from tiny_checkpoints import FULL, LINEAR
from toy import cuts, random_ids, rope, shake, toy_dict
from transformers.models.qwen3_5 import modeling_qwen3_5 as reference
from transformers.models.qwen3_5.configuration_qwen3_5 import (
    Qwen3_5TextConfig,
)

from qwen.cache import State
from qwen.config import Config
from qwen.model import Model

MROPE = {"mrope_interleaved": True, "mrope_section": [11, 11, 10]}
CONFIGS = {
    "value heads = key heads": {"linear_num_value_heads": 2},
    "2 value heads a key head": {},
    "3 value heads a key head": {"linear_num_value_heads": 6},
    "dk > dv": {"linear_key_head_dim": 10, "linear_value_head_dim": 5},
    "dk = dv": {"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    "conv of 2": {"linear_conv_kernel_dim": 2},
    "conv of 3, gqa 1": {
        "linear_conv_kernel_dim": 3,
        "num_key_value_heads": 4,
    },
    "rotary 0.25": {"rope_parameters": rope(0.25)},
    "rotary 0.25, mrope": {"rope_parameters": rope(0.25, **MROPE)},
    "rotary 0.5, mrope": {"rope_parameters": rope(0.5, **MROPE)},
    "rotary 1": {"rope_parameters": rope(1.0)},
    "rotary 1, mrope": {"rope_parameters": rope(1.0, **MROPE)},
    "tied": {"tie_word_embeddings": True},
    "head_dim = hidden / heads": {"head_dim": 4},
    "wide heads, gqa 4": {"head_dim": 32, "num_key_value_heads": 1},
    "irregular": {"layer_types": [FULL, LINEAR, FULL, FULL, LINEAR, LINEAR]},
    "all linear": {"layer_types": [LINEAR] * 3},
    "all full": {"layer_types": [FULL] * 3},
    "large eps, tied, one head": {
        "rms_norm_eps": 1e-3,
        "tie_word_embeddings": True,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
    },
}
BOUND = 1e-4


def pair(config, seed=0):
    """transformers' model and ours, which uses the very same tensors."""
    theirs = reference.Qwen3_5ForCausalLM(Qwen3_5TextConfig(**config))
    shake(theirs, seed).eval().requires_grad_(False)
    with torch.device("meta"):
        ours = Model(Config.from_dict(config))
    weights = {
        name.removeprefix("model."): tensor
        for name, tensor in theirs.state_dict().items()
    }
    ours.load_state_dict(weights, assign=True)
    return theirs, ours.eval().requires_grad_(False)


def check(config, lengths, pieces):
    """All the ways to the same logits; returns the largest difference."""
    theirs, ours = pair(config)
    T, worst = max(lengths), 0.0
    ids = random_ids(len(lengths), T, vocab=config["vocab_size"])
    mask = torch.arange(T) >= T - torch.tensor(lengths)[:, None]

    def near(a, b):
        nonlocal worst
        worst = max(worst, (a - b).abs().max().item())
        assert worst <= BOUND

    batch = ours(ids, mask=mask)
    assert batch.isfinite().all()
    asked = theirs(ids, attention_mask=mask.long(), use_cache=False).logits
    near(batch[mask], asked[mask])

    random, state = torch.Generator().manual_seed(1), State(ours, len(ids))
    parts = [
        ours(ids[:, part], state=state, mask=mask[:, part])
        for part in cuts(T, pieces, random)
    ]
    assert all(part.isfinite().all() for part in parts)
    near(torch.cat(parts, dim=1)[mask], batch[mask])

    for row, length in enumerate(lengths):
        alone = ids[row : row + 1, T - length :]
        single = ours(alone)
        near(single, theirs(alone, use_cache=False).logits)
        near(batch[row, T - length :], single[0])
        largest = single.abs().max().item()
        assert 1 <= largest <= 10, "logits of that size prove little"
    return worst


@pytest.mark.parametrize("name", CONFIGS)
def test_parity(name):
    check(toy_dict(**CONFIGS[name]), lengths=[70, 5, 1, 33], pieces=5)


def test_long():
    """Angles and decay far from the start; more than four chunks."""
    check(toy_dict(rope_parameters=rope(1.0)), [300, 2], pieces=3)


def test_every_short_length():
    """C62: nothing depends on how many tokens come at once."""
    theirs, ours = pair(toy_dict())
    ids = random_ids(1, 9)
    for T in range(1, 10):
        want = theirs(ids[:, :T], use_cache=False).logits
        assert (ours(ids[:, :T]) - want).abs().max() <= BOUND


def test_gradients():
    """The gradient of a loss, at every weight."""
    theirs, ours = pair(toy_dict(linear_num_value_heads=6))
    ids = random_ids(2, 67)
    theirs.requires_grad_(True)
    theirs(ids, use_cache=False).logits.logsumexp(-1).sum().backward()
    want = {
        name.removeprefix("model."): p.grad.clone()
        for name, p in theirs.named_parameters()
    }
    theirs.zero_grad()
    ours.requires_grad_(True)
    ours(ids).logsumexp(-1).sum().backward()
    for name, p in ours.named_parameters():
        error = (p.grad - want[name]).norm() / want[name].norm()
        assert error <= 1e-4, name


def test_the_reference_is_pure_torch():
    for rule in ("torch_chunk_gated_delta_rule", "causal_conv1d_fn"):
        function = getattr(reference, rule)
        behind = [cell.cell_contents for cell in function.__closure__]
        functions = [f for f in behind if callable(f)]
        assert functions and all(
            f.__module__ == reference.__name__ for f in functions
        )


@pytest.mark.slow
def test_the_real_shape():
    """Qwen3.5-0.8B's own configuration, with random weights."""
    path = Path(__file__).parent / "configs/qwen3.5-0.8b.json"
    config = json.loads(path.read_text())["text_config"]
    check(config, lengths=[24, 7], pieces=3)
