# Run: python -m pytest tests/test_kernels_aot.py
"""What the compiler makes of the kernels, for seven chips, without any."""

import json
import os
import subprocess
import sys

import pytest
import sync

from kernels.aot import CHIPS, ROOM, TYPES

KERNELS = "recurrent_kernel", "chunk_local_kernel", "chunk_state_kernel"


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The tool's report, compiled cold, by (chip, type, kernel)."""
    pytest.importorskip("triton")
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("c"))}
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-m", "kernels.aot"],
        cwd=sync.ROOT, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    rows = json.loads(last)
    return {(row["chip"], row["type"], row["kernel"]): row for row in rows}


@pytest.mark.slow
@pytest.mark.kernels
def test_every_chip_has_its_kernels(rows):
    """C121: fp32 and fp16 on 7.5, bf16 too from 8.0; no chunks on 7.5."""
    want = {("7.5", dtype, KERNELS[0]) for dtype in ("fp32", "fp16")}
    want |= {
        (chip, dtype, kernel)
        for chip in CHIPS[1:] for dtype in TYPES for kernel in KERNELS
    }  # fmt: skip
    assert set(rows) == want


@pytest.mark.slow
@pytest.mark.kernels
def test_shared_memory_is_there(rows):
    for (chip, *_), row in rows.items():
        assert 0 < row["shared"] <= 1024 * ROOM[chip], row


@pytest.mark.slow
@pytest.mark.kernels
def test_spills(rows):
    """None in decode; in a prefill of halves a little on 8.0 only.

    There a product's two tiles pass through registers (see kernels/aot.py).
    """
    for (chip, dtype, kernel), row in rows.items():
        if kernel == "recurrent_kernel":
            assert row["spilled"] == 0, row
        elif dtype != "fp32":
            assert row["spilled"] <= (64 if chip == "8.0" else 0), row


@pytest.mark.slow
@pytest.mark.kernels
def test_compiling_is_quick(rows):
    """Seconds of computing a kernel, not of waiting for a core."""
    assert max(row["seconds"] for row in rows.values()) < 20
