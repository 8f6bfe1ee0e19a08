# Run: python -m pytest tests/test_import.py
"""What `import qwen` costs and brings along."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Colab and a plain CPU have no triton; torch finds that out by itself
CODE = """
import sys, time
sys.modules["triton"] = None
import torch
before, start = set(sys.modules), time.perf_counter()
import qwen, qwen.__main__, qwen.chunk, qwen.cache
print(time.perf_counter() - start)
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""
SLOW = {"transformers", "triton", "matplotlib", "huggingface_hub", "kernels"}


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
def test_import_is_quick_and_brings_nothing_slow():
    """At most 0.3 s beside torch, the best of three: others may compute."""
    runs = [run(CODE) for _ in range(3)]
    assert min(float(seconds) for seconds, *_ in runs) < 0.3
    for _, *modules in runs:
        assert {"qwen", "tokenizers", "safetensors"} <= set(modules)
        assert not SLOW & set(modules)
