# Run with: python -m pytest tests/test_product.py
"""The fast ways give what the plain ways give: products, packing, pieces."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_checkpoints import write_checkpoint
from torch.nn import functional as F
from toy import (
    random_ids,
    row_state,
    state_error,
    toy_config,
    toy_model,
)

from qwen.cache import State
from qwen.model import Model
from qwen.packed import Packed, load_packed, pack
from qwen.product import product

needs_fbgemm = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines,
    reason="this PyTorch has no FBGEMM",
)


@pytest.mark.parametrize("tokens", [0, 1, 3, 40])
@pytest.mark.parametrize("rows", [1, 1024, 1025, 3000])
@pytest.mark.parametrize(
    "stored", [torch.float32, torch.bfloat16, torch.float16]
)
def test_every_way_to_a_product(stored, rows, tokens):
    """Stripes that end early, oneDNN, views, no token: all are x @ W.T."""
    torch.manual_seed(rows)
    weight = torch.randn(rows, 64).to(stored)
    x = torch.randn(2, tokens + 1, 64)[:, 1:]
    want = x.double() @ weight.double().T
    got = product(x, weight)
    assert got.dtype == torch.float32 and got.shape == want.shape
    if tokens:
        error = (got - want).abs().max() / want.abs().max()
        assert error <= 1e-6


def test_training_is_plain(monkeypatch):
    """With a gradient to come, bit for bit what F.linear does."""
    called, wrap = [], torch.Tensor.to_mkldnn
    monkeypatch.setattr(
        torch.Tensor, "to_mkldnn", lambda x: called.append(x) or wrap(x)
    )
    x, weight = torch.randn(40, 64), torch.randn(3000, 64)
    product(x, weight)
    assert len(called) == torch.backends.mkldnn.is_available()
    called.clear()
    for a, b in ((True, False), (False, True)):
        x.requires_grad_(a), weight.requires_grad_(b)
        assert torch.equal(product(x, weight), F.linear(x, weight))
    assert not called


@needs_fbgemm
@pytest.mark.parametrize("tied", [True, False])
def test_a_packed_model(tied):
    """Logits and state of fp32 arithmetic on the same bf16 weights."""
    config = toy_config(tie_word_embeddings=tied)
    exact, packed = toy_model(config), toy_model(config)
    for model in (exact, packed):
        for p in model.parameters():
            if p.dim() == 2:
                p.data = p.data.bfloat16().float()
    exact.requires_grad_(False), packed.requires_grad_(False)
    pack(packed)
    kinds = [type(m) for m in packed.modules()]
    assert kinds.count(Packed) == 1 + 3 * 8 + 7
    ids, a, b = random_ids(2, 70), State(exact, 2), State(packed, 2)
    for part in (ids[:, :64], ids[:, 64:65], ids[:, 65:]):
        want, got = exact(part, state=a), packed(part, state=b)
        assert (got - want).abs().max() <= 1e-4
    for row in range(2):
        assert state_error(row_state(b, row), row_state(a, row)) <= 1e-5


@needs_fbgemm
def test_a_packed_checkpoint(tmp_path):
    """Loaded and packed: the same logits; the embedding is a table still."""
    write_checkpoint(tmp_path, dtype=torch.bfloat16)
    plain = Model.from_pretrained(tmp_path, torch.bfloat16)
    packed, ids = load_packed(tmp_path), random_ids(1, 9, vocab=12)
    assert packed.embed_tokens.weight.dtype == torch.bfloat16
    assert (packed(ids) - plain(ids)).abs().max() <= 1e-4


SIZE_OF_PACKED = """
import torch
from qwen.packed import Packed

def resident():
    text = open("/proc/self/status").read()
    return int(text.partition("RssAnon:")[2].split()[0]) * 1024

weight = torch.ones(2048, 1024, dtype=torch.bfloat16)
Packed(weight)  # what the libraries take once
before = resident()
kept = [Packed(weight[:512]) for _ in range(60)]
print((resident() - before) / (len(kept) * 512 * 1024 * 2))
"""


@needs_fbgemm
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="Linux tells the size"
)
def test_packing_leaves_no_holes():
    """A process grows by 2 bytes a weight, not by what packing needed."""
    command = [sys.executable, "-W", "ignore", "-c", SIZE_OF_PACKED]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0.9 < float(run.stdout) < 1.1


@needs_fbgemm
def test_what_fp16_can_not_hold():
    with pytest.raises(ValueError, match="too large"):
        Packed(torch.tensor([[1.0, -70000.0]]))
    small = torch.tensor([[2.0**-14, 2.0**-24, 2.0**-26]])
    got = Packed(small)(torch.eye(3)).flatten().tolist()
    assert got == [2.0**-14, 2.0**-24, 0]


def test_without_fbgemm(monkeypatch):
    kind = type(torch.backends.quantized)
    monkeypatch.setattr(kind, "supported_engines", ["none"])
    with pytest.raises(ValueError, match="FBGEMM"):
        Packed(torch.ones(2, 2))


def test_a_prompt_in_pieces():
    """Over 256 tokens with a state go in pieces: nothing else changes."""
    model = toy_model().requires_grad_(False)
    ids, mask = random_ids(2, 600), torch.ones(2, 600, dtype=torch.bool)
    mask[1, :270] = False  # a whole piece of pads
    seen = []
    hook = model.layers[0].register_forward_hook(
        lambda _, given, out: seen.append(given[0].shape[1])
    )
    want = model(ids, mask=mask)
    state, steps = State(model, 2), State(model, 2)
    got = model(ids, state=state, mask=mask)
    hook.remove()
    assert seen == [600, 256, 256, 88]
    assert (got - want)[mask].abs().max() <= 1e-4
    for t in range(0, 600, 100):
        part = slice(t, t + 100)
        model(ids[:, part], state=steps, mask=mask[:, part])
    for row in range(2):
        assert (
            state_error(row_state(state, row), row_state(steps, row)) <= 1e-5
        )
    kept = model(ids, state=State(model, 2), mask=mask, logits_to_keep=90)
    torch.testing.assert_close(kept, got[:, -90:], atol=1e-4, rtol=0)


def test_loading_imports_little():
    """Arithmetic on `meta` would import sympy, and much else."""
    code = "import qwen, sys; qwen.load(); print('sympy' in sys.modules)"
    command = [sys.executable, "-W", "ignore", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
