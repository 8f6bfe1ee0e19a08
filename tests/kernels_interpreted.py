# Run: TRITON_INTERPRET=1 python -m pytest tests/kernels_interpreted.py
"""The kernels in Triton's interpreter, on a CPU.

The variable is read when Triton is imported, so these tests have a process
of their own: tests/test_kernels.py starts it. References: the recurrence
in float64, and for one stage the same stage in PyTorch. Each call is
counted, so that no fallback passes for a kernel, and warnings are errors.
"""

import itertools
import json
import random

import pytest
import torch
import triton
import triton.language as tl
from oracle import oracle_rule
from torch.autograd import forward_ad
from toy import cuts, random_ids, row_state, state_error, toy_config, toy_model
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5

from kernels import (
    bench,
    chunk_gated_delta_rule,
    fused_recurrent_gated_delta_rule,
    launches,
    use_kernels,
)
from kernels.inverse import unit_lower_inverse
from kernels.launch import (
    launch_local,
    launch_state,
    tables,
)
from kernels.model import FEW, kernel_rule
from kernels.rule import recurrent_tables
from kernels.sizes import chunk_sizes
from kernels.stages import in_chunks, local_stage, state_stage
from qwen.cache import State
from qwen.deltanet import delta_rule

INF = float("inf")
FORMS = {
    "recurrent": (fused_recurrent_gated_delta_rule, 1),
    "chunk": (chunk_gated_delta_rule, 2),
}
BOUND = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-3}
both = pytest.mark.parametrize("form", FORMS)

LENGTHS = 1, 2, 15, 16, 17, 63, 64, 65, 127, 130, 200
GATES = {
    "near 0": lambda u: -1e-3 * u,
    "-2 each": lambda u: torch.full_like(u, -2.0),
    "-20 each": lambda u: torch.full_like(u, -20.0),
    "-20 beside -0.01": lambda u: torch.where(u < 0.5, -20.0, -0.01 * u),
    "-inf": lambda u: torch.where(u < 0.2, -INF, -0.1 * u),
    "down to -2": lambda u: -2 * u,
}
STRENGTHS = {
    "0": lambda u: 0 * u,
    "1": lambda u: 0 * u + 1,
    "small": lambda u: 1e-3 * u,
    "any": lambda u: u,
}


def inputs(T, seed=0, B=1, Hk=1, Hv=2, dk=16, dv=24, dtype=torch.float32):
    """q, k, v, g, beta, S with random values; q, k, v in `dtype`."""
    r = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(B, T, Hk, dk, generator=r).to(dtype) for _ in "qk")
    v = torch.randn(B, T, Hv, dv, generator=r).to(dtype)
    g, beta = (torch.rand(B, T, Hv, generator=r) for _ in range(2))
    S = torch.randn(B, Hv, dk, dv, generator=r)
    return q, k, v, -2 * g, beta, S


def oracle(q, k, v, g, beta, S=None, norm=True, ends=None):
    """The recurrence in float64, token by token; packed as `ends` say."""
    if ends is not None:
        outs, states = [], []
        for n, (a, b) in enumerate(zip(ends, ends[1:])):
            start = None if S is None else S[n : n + 1]
            piece = (x[:, a:b] for x in (q, k, v, g, beta))
            out, left = oracle(*piece, start, norm)
            outs.append(out)
            states.append(left)
        return torch.cat(outs, dim=1), torch.cat(states)
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    if norm:
        q, k = (x * (x.square().sum(-1, True) + 1e-6).rsqrt() for x in (q, k))
    (B, T, Hv, dv), dk = v.shape, k.shape[-1]
    q, k = (x.repeat_interleave(Hv // x.shape[2], dim=2) for x in (q, k))
    S = q.new_zeros(B, Hv, dk, dv) if S is None else S.double()
    out = torch.zeros_like(v)
    for t in range(T):
        S = S * g[:, t, :, None, None].exp()
        predicted = torch.einsum("bhk,bhkv->bhv", k[:, t], S)
        change = beta[:, t, :, None] * (v[:, t] - predicted)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], change)
        out[:, t] = torch.einsum("bhk,bhkv->bhv", q[:, t], S) / dk**0.5
    return out, S


def error(got, want):
    """The larger relative error of (out, S); a reference of 0 must be met."""
    worst = 0
    for a, b in zip(got, want):
        assert a.shape == b.shape and a.isfinite().all()
        size = b.norm().item()
        assert size or not a.any()
        worst = max(worst, (a.double() - b).norm().item() / (size or 1))
    return worst


def call(form, *arguments, **more):
    """Call one form; it must have launched its kernels and no others."""
    rule, kernels = FORMS[form]
    before = launches()
    result = rule(*arguments, output_final_state=True, **more)
    assert launches() - before == kernels
    return result


def combinations():
    """66 cases: each length six times, every other choice many times."""
    pick = random.Random(0)
    choices = {
        "dims": itertools.cycle(
            [(16, 16), (24, 32), (32, 24), (64, 16), (16, 64), (128, 128),
             (24, 24), (32, 128), (64, 64), (128, 32)]
        ),
        "dtype": itertools.cycle(
            [torch.float32, torch.float16, torch.float32, torch.bfloat16]
        ),
        "gate": itertools.cycle(GATES),
        "strength": itertools.cycle([*STRENGTHS, "any", "any", "any"]),
    }  # fmt: skip
    for T in 6 * LENGTHS:
        case = {name: next(choice) for name, choice in choices.items()}
        few = T < 63
        case |= {
            "T": T,
            "B": pick.choice([1, 2, 3]) if few else 1,
            "heads": pick.choice([(1, 1), (1, 2), (2, 6)][: 3 if few else 2]),
            "start": pick.random() < 0.6,
            "norm": pick.random() < 0.7,
            "packed": pick.random() < 0.3,
            "strides": pick.choice(["plain", "turned", "sliced", "shared"]),
        }
        if case["packed"]:
            case["B"] = 1
        yield case


CASES = list(combinations())


def test_the_cases_have_every_value():
    want = {
        "T": {*LENGTHS},
        "B": {1, 2, 3},
        "heads": {(1, 1), (1, 2), (2, 6)},
        "dtype": {*BOUND},
        "gate": {*GATES},
        "strength": {*STRENGTHS},
        "start": {True, False},
        "norm": {True, False},
        "packed": {True, False},
        "strides": {"plain", "turned", "sliced", "shared"},
    }
    assert len(CASES) >= 60
    for name, values in want.items():
        assert {case[name] for case in CASES} == values
    sizes = {size for case in CASES for size in case["dims"]}
    assert sizes == {16, 24, 32, 64, 128}


def restrided(x, how):
    """The same numbers, in another order of memory."""
    if how == "turned":  # heads before tokens
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "sliced":  # a part of something wider
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 1), 7.0).to(x)
        wide[..., 1::2] = x
        return wide[..., 1::2]
    if how == "shared":  # one row stands for all of them
        return x[:1].expand(x.shape)
    return x


@both
@pytest.mark.parametrize("number", range(len(CASES)))
def test_combinations(form, number):
    """C26, C31, C33, C34, C119: outputs and final state."""
    c = CASES[number]
    T, (Hk, Hv), (dk, dv) = c["T"], c["heads"], c["dims"]
    args = inputs(T, number, c["B"], Hk, Hv, dk, dv, c["dtype"])
    q, k, v, g, beta, S = args
    g, beta = GATES[c["gate"]](g / -2), STRENGTHS[c["strength"]](beta)
    if not c["norm"]:  # raw keys must not be too long for a stable rule
        q, k = (x / dk**0.5 for x in (q, k))
    q, k, v, g, beta = (restrided(x, c["strides"]) for x in (q, k, v, g, beta))
    ends = cu = None
    if c["packed"]:
        ends = sorted([0, 0, T // 3, T // 3, T // 2, T, T])
        cu = torch.tensor(ends, dtype=[torch.int32, torch.int64][number % 2])
        S = inputs(1, number, len(ends) - 1, Hk, Hv, dk, dv)[-1]
    S = restrided(S, c["strides"]) if c["start"] else None
    got = call(
        form, q, k, v, g, beta, initial_state=S, cu_seqlens=cu,
        use_qk_l2norm_in_kernel=c["norm"],
    )  # fmt: skip
    assert got[0].dtype == c["dtype"] and got[1].dtype == torch.float32
    want = oracle(q, k, v, g, beta, S, c["norm"], ends)
    assert error(got, want) <= BOUND[c["dtype"]]


def test_the_reference_is_the_books():
    args = inputs(20, Hk=2, Hv=4)
    assert error(oracle(*args), oracle_rule(*args)) < 1e-12


# One stage after another.


def chunked(args, C):
    """q, k, v, g, beta of one head per key head, as the stages take them."""
    q, k, v, g, beta = (in_chunks(x, C) for x in args)
    group = v.shape[1] // k.shape[1]
    q, k = (x.repeat_interleave(group, dim=1) for x in (q, k))
    return q, k, v, g, beta


@triton.jit
def inverse_kernel(L, X, C: tl.constexpr):
    i = tl.arange(0, C)
    at = i[:, None] * C + i[None, :]
    tl.store(X + at, unit_lower_inverse(tl.load(L + at), C))


@pytest.mark.parametrize("C", [32, 64])
@pytest.mark.parametrize("system", ["random", "the same key", "nothing"])
def test_inverse(C, system):
    """The worst case has keys that are nearly the same, and beta 1."""
    r = torch.Generator().manual_seed(0)
    k = torch.randn(C, 16, generator=r)
    if system == "the same key":
        k = k[:1] + 1e-3 * k
    k = k / k.norm(dim=1, keepdim=True)
    L = (k @ k.T * (system != "nothing")).tril(-1)
    X = torch.full_like(L, INF)
    inverse_kernel[(1,)](L, X, C)
    want = torch.linalg.inv(torch.eye(C).double() + L.double())
    assert (X.double() - want).norm() <= 1e-6 * want.norm()
    assert X.triu(1).eq(0).all() and X.diagonal().eq(1).all()


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("gate", GATES)
def test_local_stage(norm, gate):
    """C31: what each chunk computes by itself, against PyTorch."""
    q, k, v, g, beta, S = inputs(70, Hk=1, Hv=2)
    g, k = GATES[gate](g / -2), k if norm else k / 4
    sizes = chunk_sizes((9, 0), torch.float32, 16, 24)[0]
    C = sizes["C"]
    spans = tables(1, 70, None, C, q.device)
    got = launch_local(q, k, g, beta, 0.25, norm, spans, sizes)
    Q, K, _, G, b = chunked((q, k, v, g, beta), C)
    want = local_stage(
        *(x.double() for x in (Q, K, G, b)), 0.25, norm
    )  # [1, Hv, chunks, ...], and the kernel's are [chunks, Hv, ...]
    for ours, theirs in zip(got, want):
        theirs = theirs[0].transpose(0, 1)
        assert ours.shape == theirs.shape and ours.isfinite().all()
        scale = theirs.norm().clamp(min=1e-30)
        assert (ours - theirs).norm() <= 2e-6 * scale


def test_state_stage():
    """C34: the chain over chunks, given the same tiles from PyTorch."""
    args = inputs(70, Hk=1, Hv=2)
    (q, k, v, g, beta), S = args[:5], args[5]
    local_sizes, sizes = chunk_sizes((9, 0), torch.float32, 16, 24)
    C = sizes["C"]
    spans = tables(1, 70, None, C, q.device)
    Q, K, V, G, b = chunked((q, k, v, g, beta), C)
    local = local_stage(Q, K, G, b, 0.25, True)
    want, left = state_stage(Q, K, V, *local, S)
    want = want.flatten(2, 3)[:, :, :70].transpose(1, 2)
    turned = [x[0].transpose(0, 1).contiguous() for x in local]
    got = launch_state(q, k, v, turned, S, spans, sizes)
    assert error(got, (want.double(), left.double())) <= 1e-6


@both
def test_final_state_of_short_chunks(form):
    """C34, C35: a pad decays nothing and writes nothing."""
    for T in (31, 32, 33, 70):
        args = inputs(T, seed=T, Hv=1)
        got = call(form, *args[:5], initial_state=args[5],
                   use_qk_l2norm_in_kernel=True)  # fmt: skip
        assert error(got, oracle(*args)) <= 1e-6


def test_nearly_the_same_keys():
    """The chunk's system at its worst; then tiny and zero keys (C30)."""
    q, k, v, g, beta, S = inputs(130)
    same = k[:, :1] + 1e-3 * k
    tiny = k.clone()
    tiny[:, 3], tiny[:, 7:9], q[:, 5] = 0, 1e-5, 0
    for keys in (same, tiny):
        args = q, keys, v, 0.01 * g, 0 * beta + 1
        got = call("chunk", *args, initial_state=S,
                   use_qk_l2norm_in_kernel=True)  # fmt: skip
        assert error(got, oracle(*args, S)) <= 1e-5


@both
@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize(
    "size, value, strength", [(300, 1, 1e-3), (1e-4, 100, 1), (1, 1, 1e-3)]
)
def test_long_and_short_keys(form, dtype, size, value, strength):
    """C30: fp16 ends at 65,504, and below 6e-5 it loses digits.

    A write divided by |k| may leave that range on either side.
    """
    q, k, v, g, beta, _ = inputs(70, Hv=1, dk=24, dtype=dtype)
    args = size * q, size * k, value * v, g, strength * beta
    got = call(form, *args, use_qk_l2norm_in_kernel=True)
    assert error(got, oracle(*args)) <= BOUND[dtype]


def test_bench_from_end_to_end(monkeypatch, capsys):
    """A rehearsal on small sizes: only the clock and the chip are played."""
    monkeypatch.setattr(bench, "LENGTHS", (17, 33))
    monkeypatch.setattr(bench, "HEADS", ((1, 2),))
    monkeypatch.setattr(bench, "BATCHES", (1, 2))
    monkeypatch.setattr(
        bench, "inputs",
        lambda B, T, Hk, Hv, dtype: inputs(T, 0, B, 1, 2, 16, 16, dtype),
    )  # fmt: skip

    def median(function):
        function()
        return 0.5

    monkeypatch.setattr(bench, "median", median)
    monkeypatch.setattr(bench, "peaks", lambda dtype: (1e12, 1e14))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a chip")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr("sys.argv", ["bench"])
    bench.main()
    *_, last = capsys.readouterr().out.splitlines()
    rows = json.loads(last)["rows"]
    assert [(r.get("B", 1), r["T"]) for r in rows] == [
        (1, 1), (2, 1), (1, 17), (1, 33)
    ]  # fmt: skip
    assert rows[0]["ms"] == {"recurrent": 0.5, "torch loop": 0.5}
    assert {*rows[-1]["ms"]} >= {"chunk", "local", "state", "torch chunk"}
    assert all(max(r["errors"].values()) < 5e-3 for r in rows)

    def wrong(*args, **more):
        return 2 * args[2], more["initial_state"]

    monkeypatch.setattr(bench, "fused_recurrent_gated_delta_rule", wrong)
    with pytest.raises(RuntimeError, match="recurrent"):
        bench.main()


# As a whole.


@both
def test_pieces(form):
    """C55: a prefill in pieces equals one pass, whatever the pieces."""
    args = inputs(75)
    want = oracle(*args)
    parts = cuts(75, 4, torch.Generator().manual_seed(1))
    S, outs = args[5], []
    for part in (p for p in parts if p.stop > p.start):
        piece = (x[:, part] for x in args[:5])
        out, S = call(form, *piece, initial_state=S,
                      use_qk_l2norm_in_kernel=True)  # fmt: skip
        outs.append(out)
    assert error((torch.cat(outs, 1), S), want) <= 1e-6


def test_the_state_after_each_token():
    """C66: table t is what a pass that stops there leaves behind."""
    args = inputs(7, B=2)
    before = launches()
    out, after = recurrent_tables(*args)
    assert launches() - before == 1 and after.shape == (2, 7, 2, 16, 24)
    for t in range(7):
        piece = (x[:, : t + 1] for x in args[:5])
        want = oracle(*piece, args[5])
        assert error((out[:, : t + 1], after[:, t]), want) <= 1e-6


@both
@pytest.mark.parametrize("dk, dv", [(1, 1), (7, 200), (130, 5), (200, 130)])
def test_head_sizes(form, dk, dv):
    """C119: no size is baked in, powers of two or not."""
    args = inputs(3, Hv=1, dk=dk, dv=dv, dtype=torch.float16)
    got = call(form, *args[:5], initial_state=args[5],
               use_qk_l2norm_in_kernel=True)  # fmt: skip
    assert error(got, oracle(*args)) <= BOUND[torch.float16]


def test_fp32_keys_too_large_for_chunks():
    """They take the recurrent kernel, silently."""
    args = inputs(3, Hv=1, dk=130)
    before = launches()
    got = chunk_gated_delta_rule(*args[:5], None, args[5], True, True)
    assert launches() - before == 1
    assert error(got, oracle(*args)) <= 1e-5


@both
def test_every_element_is_written(form, monkeypatch):
    """A buffer that was not cleared shows what nobody wrote."""
    empty, like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(
        float("nan")))  # fmt: skip
    monkeypatch.setattr(torch, "empty_like", lambda x: like(x).fill_(
        float("nan")))  # fmt: skip
    for ends in ([0, 33, 33, 70], None):
        args = inputs(70, dv=20)[:5]
        cu = None if ends is None else torch.tensor(ends)
        got = call(form, *args, cu_seqlens=cu, use_qk_l2norm_in_kernel=True)
        assert error(got, oracle(*args, ends=ends)) <= 1e-5


@both
def test_nothing_is_written_to(form):
    args = inputs(5)
    old = [x.clone() for x in args]
    _, left = call(form, *args[:5], initial_state=args[5])
    assert all(torch.equal(x, y) for x, y in zip(args, old))
    assert left.data_ptr() != args[5].data_ptr()


@both
def test_nothing_to_do(form):
    """C64: no tokens, no rows, only empty sequences; no kernel is needed."""
    function, _ = FORMS[form]
    for T, B in ((0, 2), (3, 0)):
        args = inputs(T, B=B)
        out, left = function(*args[:5], None, args[5], True)
        assert out.shape == (B, T, 2, 24)
        assert torch.equal(left, args[5]) and left is not args[5]
        out, left = function(*args[:5])
        assert left is None
    args, S = inputs(0), inputs(1, B=3)[5]
    cu = torch.zeros(4, dtype=torch.int32)
    out, left = function(*args[:5], None, S, True, cu_seqlens=cu)
    assert out.shape == (1, 0, 2, 24) and torch.equal(left, S)


@both
def test_scale_and_other_keywords(form):
    q, k, v, g, beta, S = inputs(3)
    want = oracle(4 * q, k, v, g, beta, S, norm=False)[0]
    got, none = FORMS[form][0](
        q, k, v, g, beta, 1.0, S, head_first=False, anything=1
    )
    assert none is None
    assert (got - want).norm() <= 1e-5 * want.norm()


def test_old_chips(monkeypatch):
    """C121: a T4 takes the recurrent kernel, silently, and no bf16."""
    chip = 7, 5
    monkeypatch.setattr("kernels.checks.capability", lambda _: chip)
    monkeypatch.setattr("kernels.rule.capability", lambda _: chip)
    for dtype in (torch.float32, torch.float16):
        args = inputs(20, dtype=dtype)
        before = launches()
        got = chunk_gated_delta_rule(*args[:5], None, args[5], True, True)
        assert launches() - before == 1
        assert error(got, oracle(*args)) <= BOUND[dtype]
    args = inputs(20, dtype=torch.bfloat16)
    before = launches()
    with pytest.warns(UserWarning, match="8.0 there is no bf16") as caught:
        got = chunk_gated_delta_rule(*args[:5], None, args[5], True, True)
    assert len(caught) == 1 and launches() == before
    assert error(got, oracle(*args)) <= BOUND[torch.bfloat16]
    chip = 7, 0
    with pytest.warns(UserWarning, match="older than compute capability"):
        chunk_gated_delta_rule(*args[:5])
    assert launches() == before


@both
def test_large_heads_and_gradients_fall_back(form):
    """C119: one warning, and PyTorch's right answer."""
    function, _ = FORMS[form]
    wide = inputs(3, Hv=1, dk=16, dv=257)
    grown = [x.requires_grad_() for x in inputs(3)]
    for args, why in ((wide, "larger than 256"), (grown, "a gradient")):
        before = launches()
        with pytest.warns(UserWarning, match=why) as caught:
            got = function(*args[:5], None, args[5], True, True)
        assert len(caught) == 1 and launches() == before
        assert caught[0].filename == __file__
        assert error(got, oracle(*args)) <= 1e-6
    got[0].sum().backward()
    assert grown[0].grad.any()
    with torch.no_grad():
        call(form, *grown[:5])


@both
def test_a_tangent_falls_back(form):
    """Forward derivatives need no requires_grad, and are not lost either."""
    args, turns = inputs(20), inputs(20, seed=1)
    before = launches()
    with forward_ad.dual_level():
        for i in range(6):
            duals = [*args]
            duals[i] = forward_ad.make_dual(args[i], turns[i])
            want = [forward_ad.unpack_dual(x)[1] for x in delta_rule(*duals)]
            with pytest.warns(UserWarning, match="a gradient") as caught:
                got = FORMS[form][0](*duals[:5], None, duals[5], True, True)
            assert len(caught) == 1 and launches() == before
            got = [forward_ad.unpack_dual(x)[1] for x in got]
            if i:  # a query does not touch the table
                assert error(got, [x.double() for x in want]) <= 1e-5
            else:
                assert error(got[:1], [want[0].double()]) <= 1e-5
        call(form, *args[:5])  # none of these has a tangent


@both
def test_another_default_device(form):
    """The tables of a call lie where its tensors do."""
    args = inputs(19)
    tables.cache_clear()
    with torch.device("meta"):
        got = call(form, *args[:5], initial_state=args[5],
                   use_qk_l2norm_in_kernel=True)  # fmt: skip
    assert error(got, oracle(*args)) <= 1e-6


# The model.


def test_the_model_on_kernels():
    """As without them, to 1e-4; logits and memory; then they are gone."""
    model = toy_model(toy_config())
    rules = [m.rule for m in model.modules() if hasattr(m, "rule")]
    ids = random_ids(2, FEW + 25)
    mask = torch.ones_like(ids).bool()
    mask[1, :5] = False
    pieces = [slice(0, FEW + 20), slice(FEW + 20, FEW + 24), slice(-1, None)]

    def run():
        state, logits = State(model, batch=2), []
        for part in pieces:
            logits.append(model(ids[:, part], state, mask[:, part]))
        return torch.cat(logits, 1), [row_state(state, b) for b in (0, 1)]

    want, held = run()
    use_kernels(model)
    use_kernels(model)  # twice is once
    before = launches()
    got, kept = run()
    assert launches() - before == len(rules) * (2 + 1 + 1)
    assert (got - want)[mask].norm() <= 1e-4 * want[mask].norm()
    assert max(map(state_error, kept, held)) <= 1e-4
    use_kernels(model, False)
    assert rules == [m.rule for m in model.modules() if hasattr(m, "rule")]
    before = launches()
    assert torch.equal(run()[0], want) and launches() == before


def test_kernel_rule_is_a_rule():
    """The signature of `delta_rule`, with and without a table."""
    for T in (1, FEW, FEW + 1):
        args = inputs(T)
        assert error(kernel_rule(*args), oracle(*args)) <= 1e-5
        got = kernel_rule(*args[:5])
        assert error(got, oracle(*args[:5])) <= 1e-5


def test_in_transformers(monkeypatch):
    """The hooks of transformers' model take the kernels as they are."""
    config = Qwen3_5TextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=8, linear_value_head_dim=8,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = Qwen3_5ForCausalLM(config).eval()
    ids = random_ids(1, 20, vocab=64)

    @torch.no_grad()
    def run():
        first = theirs(ids[:, :-1], use_cache=True)
        last = theirs(ids[:, -1:], past_key_values=first.past_key_values)
        return torch.cat([first.logits, last.logits], dim=1)

    want, before = run(), launches()
    for name, function in (
        ("torch_chunk_gated_delta_rule", chunk_gated_delta_rule),
        ("torch_recurrent_gated_delta_rule", fused_recurrent_gated_delta_rule),
    ):
        monkeypatch.setattr(modeling_qwen3_5, name, function)
    got = run()
    assert launches() - before == 3 * (2 + 1)
    assert (got - want).norm() <= 1e-5 * want.norm()
