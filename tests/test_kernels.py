# Run: python -m pytest tests/test_kernels.py
"""The kernels without a GPU: what a call does then, and the interpreter.

What runs the kernels themselves stands in tests/kernels_interpreted.py.
"""

import json
import os
import re
import subprocess
import sys
from math import log2

import pytest
import sync
import torch
from oracle import oracle_rule
from toy import random_ids, toy_config, toy_model

from kernels import (
    chunk_gated_delta_rule,
    fused_recurrent_gated_delta_rule,
    launches,
    use_kernels,
)
from kernels.bench import counted, inputs, recurrence64
from kernels.checks import check
from kernels.rule import recurrent_tables
from kernels.sizes import chunk_sizes, recurrent_sizes
from kernels.stages import in_chunks, local_stage, state_stage

FORMS = chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
both = pytest.mark.parametrize("form", FORMS)


def run(*command, **variables):
    """Run Python on the checkout; variables set to None are taken away."""
    env = {**os.environ, "PYTHONPATH": str(sync.ROOT)} | variables
    env = {name: value for name, value in env.items() if value is not None}
    return subprocess.run(
        [sys.executable, *command],
        cwd=sync.ROOT, env=env, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.kernels
def test_in_the_interpreter():
    """C123: the kernels against the float64 recurrence, on a CPU."""
    pytest.importorskip("triton")
    done = run(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
        "tests/kernels_interpreted.py", TRITON_INTERPRET="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 120


IMPORT = """
import sys
import kernels
assert "triton" not in sys.modules and not hasattr(kernels, "__version__")
import torch
assert not torch.cuda.is_initialized()
"""

WITHOUT = """
import sys, warnings
sys.modules["triton"] = None
from kernels import chunk_gated_delta_rule, launches
import torch
q, g = torch.ones(1, 2, 1, 16), torch.zeros(1, 2, 1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    out, _ = chunk_gated_delta_rule(q, q, q, g, g + 1)
print(*(c.message for c in caught), launches(), bool(out.isfinite().all()))
"""


def test_import_needs_nothing():
    """C122: no driver, no Triton; a call says what is missing."""
    done = run("-c", IMPORT, TRITON_INTERPRET=None)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    done = run("-c", WITHOUT, TRITON_INTERPRET=None)
    assert done.returncode == 0, done.stderr
    text = "Triton is not installed: PyTorch runs in the kernels' place"
    assert done.stdout == f"{text} 0 True\n"


LATE = """
import os, warnings
import triton
os.environ["TRITON_INTERPRET"] = "1"
import torch
from kernels import chunk_gated_delta_rule
q, g = torch.ones(1, 2, 1, 16), torch.zeros(1, 2, 1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    chunk_gated_delta_rule(q, q, q, g, g + 1)
print(*(c.message for c in caught))
"""


def test_the_interpreter_must_be_asked_for_in_time():
    """C123: set after Triton's import it does nothing, and a call says so."""
    pytest.importorskip("triton")
    done = run("-c", LATE, TRITON_INTERPRET=None)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the tensors are on cpu, not on a CUDA GPU")


def test_qwen_does_not_know_the_kernels():
    for path in (sync.ROOT / "qwen").rglob("*.py"):
        assert not re.search(
            r"(?m)^\s*(from|import) kernels", path.read_text()
        )


def error(got, want):
    for a, b in zip(got, want):
        assert a.shape == b.shape
    return max(
        ((a.double() - b).norm() / b.norm()).item() for a, b in zip(got, want)
    )


def on_the_cpu():
    return pytest.warns(UserWarning, match="on cpu, not on a CUDA GPU")


@both
@pytest.mark.parametrize("T", [1, 63, 70])
def test_fallback(form, T):
    """C121: PyTorch's answer, one warning that says why, at the caller."""
    q, k, v, g, beta, S = args = inputs(2, T, 2, 4, torch.float32, "cpu", 8)
    before = launches()
    with on_the_cpu() as caught:
        got = form(q, k, v, g, beta, None, S, True, True, head_first=False)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert launches() == before
    assert error(got, oracle_rule(*args)) <= 1e-5
    with on_the_cpu():
        assert form(q, k, v, g, beta)[1] is None


@both
def test_heads_before_tokens_are_refused(form):
    """Another layout fits all the shapes, and would be read as this one."""
    args = inputs(2, 5, 1, 1, torch.float32, "cpu", 8)[:5]
    with pytest.raises(ValueError, match="^head_first "):
        form(*args, head_first=True)


def test_fallback_of_packed_sequences():
    q, k, v, g, beta, _ = inputs(1, 9, 1, 2, torch.float32, "cpu", 8)
    S = torch.randn(4, 2, 8, 8)
    cu = torch.tensor([0, 2, 2, 9, 9])
    with on_the_cpu():
        out, left = chunk_gated_delta_rule(
            q, k, v, g, beta, None, S, True, True, cu
        )
    assert torch.equal(left[1], S[1]) and torch.equal(left[3], S[3])
    for n, part in (0, slice(0, 2)), (2, slice(2, 9)):
        piece = (x[:, part] for x in (q, k, v, g, beta))
        want = oracle_rule(*piece, S[n : n + 1])
        assert error((out[:, part], left[n : n + 1]), want) <= 1e-5


def test_fallback_keeps_the_state_after_each_token():
    q, k, v, g, beta, S = args = inputs(2, 5, 1, 2, torch.float32, "cpu", 8)
    with on_the_cpu() as caught:
        out, after = recurrent_tables(*args)
    assert len(caught) == 1 and caught[0].filename == __file__
    for t in range(5):
        piece = (x[:, : t + 1] for x in (q, k, v, g, beta))
        want = oracle_rule(*piece, S)
        assert error((out[:, : t + 1], after[:, t]), want) <= 1e-5
    with on_the_cpu():
        out, after = recurrent_tables(*(x[:, :0] for x in args[:5]), S)
    assert out.shape == (2, 0, 2, 8) and after.shape == (2, 0, 2, 8, 8)


def test_a_model_falls_back_too():
    """One warning a layer, and the same text as without the kernels."""
    model, ids = toy_model(toy_config()), random_ids(2, 20)
    want = model(ids)
    use_kernels(model)
    with on_the_cpu() as caught:
        got = model(ids)
    use_kernels(model, on=False)
    layers = [m for m in model.modules() if hasattr(m, "rule")]
    assert len(caught) == len(layers) == 3
    assert (got - want).norm() <= 1e-5 * want.norm()
    assert torch.equal(model(ids), want)


def test_errors_name_the_argument():
    q, k, v, g, beta, S = inputs(2, 5, 1, 2, torch.float32, "cpu", 8)
    good = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": S}
    wrong = {
        "q": [q[:, :4], q[..., :7], q.half(), q.int(), q.to("meta")],
        "k": [k[0], k.double()],
        "v": [v[:, :4], v[0], v.bfloat16()],
        "g": [g[..., None], g.long(), g[:, :, :1]],
        "beta": [beta[:1], beta.bool()],
        "initial_state": [S[0], S[:1], S.mT[:, :, :7], S.double()],
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=r"^\w+ (is|has) ") as raised:
                check(**good | {name: value})
            told = str(raised.value).split()
            # of two that don't go together either may be named
            assert {name, "v"} & {*told} or name in str(raised.value)
    three = v[:, :, :1].expand(2, 5, 3, 8), g[..., :1].expand(2, 5, 3)
    with pytest.raises(ValueError, match="v has 3 heads"):
        check(q.expand(2, 5, 2, 8), k.expand(2, 5, 2, 8), three[0],
              three[1], three[1])  # fmt: skip


@pytest.mark.parametrize(
    "ends",
    [[], [0], [1, 5], [0, 4], [0, 6], [0, 3, 2, 5], [0.0, 5.0], [[0, 5]]],
)
def test_cu_seqlens_must_cover_the_row(ends):
    """A wrong one would make a kernel read beside its tensors."""
    args = inputs(1, 5, 1, 2, torch.float32, "cpu", 8)[:5]
    with pytest.raises(ValueError, match="^cu_seqlens "):
        check(*args, cu_seqlens=torch.tensor(ends))


def test_cu_seqlens_packs_one_row():
    args = inputs(2, 5, 1, 2, torch.float32, "cpu", 8)[:5]
    with pytest.raises(ValueError, match="packs one row"):
        check(*args, cu_seqlens=torch.tensor([0, 5]))


def test_sizes():
    """C119, C121: a power of two covers dk; no chunks on a T4."""
    for dk in (1, 16, 24, 100, 128, 200, 256):
        BK = recurrent_sizes(dk, 8)["BK"]
        assert BK >= dk and log2(BK).is_integer() and BK < 2 * max(dk, 9)
    for dtype in (torch.float32, torch.float16):
        assert chunk_sizes((7, 5), dtype, 128, 128) is None
    assert chunk_sizes((8, 0), torch.float16, 128, 128)[0]["C"] == 64


# How a product rounds. The interpreter multiplies fp32 numbers exactly,
# whatever input_precision says, so what a tensor core reads is made here.


def tf32(x):
    """fp32 -> the nearest number with ten bits behind the leading one."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def tf32x3(a, b):
    A, B = tf32(a), tf32(b)
    return tf32(a - A) @ B + A @ tf32(b - B) + A @ B


PRODUCTS = {
    "fp32": torch.matmul,
    "tf32x3": tf32x3,
    "tf32": lambda a, b: tf32(a) @ tf32(b),
    "fp16": lambda a, b: a.half().float() @ b.half().float(),
    "bf16": lambda a, b: a.bfloat16().float() @ b.bfloat16().float(),
}


def inverse(L, dot):
    """`unit_lower_inverse` in PyTorch: L [C, C], C a power of 2 times 16."""
    C = len(L)
    if C == 16:
        X = torch.eye(16)
        for t in range(1, 16):
            X[t] -= L[t] @ X
        return X
    h = C // 2
    A, B = inverse(L[:h, :h], dot), inverse(L[h:, h:], dot)
    below = -dot(B, dot(L[h:, :h], A))
    return torch.cat([torch.cat([A, 0 * A], 1), torch.cat([below, B], 1)])


def test_what_the_inverse_needs():
    """tf32x3 is as exact as fp32; tf32 and fp16 lose three digits."""
    r = torch.Generator().manual_seed(0)
    k = torch.randn(64, 128, generator=r)
    k = k / k.norm(dim=1, keepdim=True)
    near = k[:1] + 0.3 * k
    near = near / near.norm(dim=1, keepdim=True)
    for keys in (k, near):
        L = (keys @ keys.T).tril(-1)
        want = torch.linalg.inv(torch.eye(64).double() + L.double())
        lost = {
            name: ((inverse(L, dot).double() - want).norm() / want.norm())
            for name, dot in PRODUCTS.items()
        }
        assert lost["fp32"] <= 1e-6 and lost["tf32x3"] <= 1e-6
        assert min(lost[name] for name in ("tf32", "fp16", "bf16")) >= 5e-5


@pytest.mark.parametrize(
    "product, bound", [("bf16", 5e-3), ("fp16", 1e-3), ("tf32x3", 1e-6)]
)
def test_what_the_products_cost(product, bound):
    """The state pass as the tensor cores round it, heads of 128.

    What goes into a product is rounded to its type, the tiles that the
    first kernel leaves as well; S and all sums stay in fp32.
    """
    q, k, v, g, beta, S = inputs(1, 200, 1, 1, torch.float32, "cpu")
    q, k, v = (x.bfloat16().float() for x in (q, k, v))
    want = oracle_rule(q, k, v, g, beta, S)
    q, k, v, g, beta = (in_chunks(x, 64) for x in (q, k, v, g, beta))
    *tiles, factors, left = local_stage(q, k, g, beta, 128**-0.5, True)
    if product == "bf16":
        tiles = [x.bfloat16().float() for x in tiles]
    out, S = state_stage(q, k, v, *tiles, factors, left, S, PRODUCTS[product])
    out = out.flatten(2, 3)[:, :, :200].transpose(1, 2)
    assert error((out, S), want) <= bound


def test_tf32_by_hand():
    one = torch.tensor([1 + 2.0**-10, 1 + 2.0**-12, -3.0])
    assert tf32(one).tolist() == [1 + 2.0**-10, 1.0, -3.0]


# The tools.


def test_bench_without_a_gpu():
    """It says so, and its last line is machine-readable."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run("-m", "kernels.bench")
    assert done.returncode == 0, done.stderr
    *_, said, last = done.stdout.splitlines()
    assert said == "There is no CUDA GPU here: nothing was timed."
    assert json.loads(last)["counted"] == counted(1, 16, 32)


def test_counts():
    """A token and value head at 128 x 128, 16 key and 32 value heads."""
    c = counted(1, 16, 32)
    assert c["recurrence"] / 32 == 7 * 128 * 128
    assert c["operations"] / 32 == 4 * 16384 + 3 * 32768 + 1365
    assert c["bytes"] / 32 == 776


def test_the_benchs_reference():
    args = inputs(2, 9, 1, 2, torch.float32, "cpu", 8)
    assert error(recurrence64(*args), oracle_rule(*args)) <= 1e-12
