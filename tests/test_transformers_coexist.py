# python -m pytest tests/test_transformers_coexist.py
"""transformers looks for a package `kernels`, and here it finds ours."""

import os
import subprocess
import sys

import sync

SCRIPT = """
import kernels
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

assert kernels.__file__.startswith({root!r}), kernels.__file__
assert not hasattr(kernels, "__version__")
config = Qwen3_5TextConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
)
model = Qwen3_5ForCausalLM(config).eval()
ids = torch.tensor([[1, 2, 3, 4, 5]])
with torch.no_grad():
    logits = model(ids, use_cache=False).logits
assert logits.shape == (1, 5, 64)
assert torch.isfinite(logits).all()
assert sys.modules["kernels"] is kernels
"""


def test_transformers_runs_with_our_kernels_on_the_path(tmp_path):
    root = str(sync.ROOT)
    script = "import sys\n" + SCRIPT.format(root=root)
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
