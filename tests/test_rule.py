# Run with: python -m pytest tests/test_rule.py
"""Both forms of the delta rule against the recurrence in float64.

Outputs and the table left behind: a state that went wrong shows in the
outputs of later tokens only.
"""

from functools import partial

import pytest
import torch
from oracle import oracle_rule
from toy import cuts
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from qwen.chunk import auto_rule, chunked_delta_rule, decay_matrix
from qwen.deltanet import delta_rule

CHUNKS = 1, 7, 32, 64, 128
FORMS = {"loop": delta_rule, "auto": auto_rule}
FORMS |= {f"chunks of {c}": partial(chunked_delta_rule, chunk_size=c)
          for c in CHUNKS}  # fmt: skip
INF = float("inf")
BOUND = 1e-5  # relative; 1e-4 would do for gates that vary down to -20

both = pytest.mark.parametrize("form", FORMS)


def inputs(T, seed=0, B=2, Hk=2, Hv=4, dk=5, dv=3):
    """q, k, v, g (0 to -2), beta, S: random, the table as well."""
    random = torch.Generator().manual_seed(seed)
    q, k, v, S = (
        torch.randn(shape, generator=random)
        for shape in ((B, T, Hk, dk), (B, T, Hk, dk), (B, T, Hv, dv),
                      (B, Hv, dk, dv))
    )  # fmt: skip
    g, beta = (torch.rand(B, T, Hv, generator=random) for _ in range(2))
    return q, k, v, -2 * g, beta, S


def error(got, want):
    """The larger relative error of the two results, (out, S)."""
    for a, b in zip(got, want):
        assert a.shape == b.shape and a.isfinite().all()
    return max(
        ((a.double() - b.double()).norm() / b.double().norm()).item()
        for a, b in zip(got, want)
        if b.numel()
    )


def in_pieces(rule, parts, q, k, v, g, beta, S):
    reads = []
    for part in parts:
        piece = (x[:, part] for x in (q, k, v, g, beta))
        out, S = rule(*piece, S)
        reads.append(out)
    return torch.cat(reads, dim=1), S


GATES = {
    "down to -2": lambda u: -2 * u,
    "down to -20": lambda u: -20 * u,
    "-20 beside -0.01": lambda u: torch.where(u < 0.5, -20.0, -0.01 * u),
    "none or full": lambda u: torch.where(u < 0.3, -INF, -0.1 * u),
} | {f"all {c}": partial(torch.full_like, fill_value=c)
     for c in (0.0, -2.0, -100.0)}  # fmt: skip


@pytest.mark.parametrize("gate", GATES)
def test_every_length_and_split(gate):
    """C31, C33, C34, C35: T = 1 to 130, whole and in up to four pieces."""
    random = torch.Generator().manual_seed(0)
    for T in range(1, 131):
        q, k, v, g, beta, S = inputs(T, seed=T, B=1)
        g = GATES[gate](g / -2)
        want = oracle_rule(q, k, v, g, beta, S)
        for form, rule in FORMS.items():
            # each form meets each number of pieces, at some length
            pieces = 1 + (T + len(form)) % 4
            parts = cuts(T, pieces, random)
            got = in_pieces(rule, parts, q, k, v, g, beta, S)
            assert error(got, want) <= BOUND, (form, T, parts)


@both
@pytest.mark.parametrize("Hk, Hv", [(1, 1), (3, 3), (2, 4), (2, 6), (1, 3)])
def test_heads(form, Hk, Hv):
    """C26: value head j has key head j // (Hv / Hk)."""
    args = inputs(70, Hk=Hk, Hv=Hv)
    assert error(FORMS[form](*args), oracle_rule(*args)) <= BOUND


@both
def test_pairing_by_hand(form):
    """C26: keys of their own a head, so that tiling gives other values."""
    q = k = torch.eye(2)[None, None]  # head 0 along axis 0, head 1 along 1
    v = torch.arange(1.0, 5).reshape(1, 1, 4, 1)
    g, beta = torch.zeros(1, 1, 4), torch.ones(1, 1, 4)
    _, S = FORMS[form](q, k, v, g, beta)
    axis = S[0, :, :, 0].argmax(-1)
    assert axis.tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(S.amax((0, 2, 3)), torch.arange(1.0, 5))


@pytest.mark.parametrize("T", [1, 63, 64, 65, 130])
def test_against_transformers(T):
    q, k, v, g, beta, S = inputs(T)
    for reference in (
        torch_chunk_gated_delta_rule,
        torch_recurrent_gated_delta_rule,
    ):
        for start in (None, S):
            want = reference(
                q, k, v, g=g, beta=beta, initial_state=start,
                output_final_state=True, use_qk_l2norm_in_kernel=True,
            )  # fmt: skip
            for form, rule in FORMS.items():
                got = rule(q, k, v, g, beta, start)
                assert error(got, want) <= BOUND, form


@both
@pytest.mark.parametrize("t", [0, 1, 31, 32, 63, 64, 69])
def test_a_gate_of_minus_infinity_restarts(form, t):
    """C33: what stood before the token is gone, whatever it was."""
    q, k, v, g, beta, S = inputs(70)
    g[:, t] = -INF
    out, left = FORMS[form](q, k, v, g, beta, S)
    tail = [x[:, t:] for x in (q, k, v, g, beta)]
    tail[3][:, 0] = 0  # nothing is there to decay
    want = oracle_rule(*tail)
    assert error((out[:, t:], left), want) <= BOUND
    head = [x[:, :t] for x in (q, k, v, g, beta)]
    want = oracle_rule(*head, S)[0]
    assert torch.allclose(out[:, :t].double(), want, atol=1e-5)


@both
def test_many_full_gates_in_a_chunk(form):
    q, k, v, g, beta, S = inputs(130)
    most = inputs(130, seed=1)[4] < 0.9
    for gates in (
        torch.full_like(g, -INF),
        torch.where(most, -INF, g),
        torch.where(most, -1e30, g),
        torch.where(most, -100.0, 0.01 * g),
    ):
        want = oracle_rule(q, k, v, gates, beta, S)
        assert error(FORMS[form](q, k, v, gates, beta, S), want) <= BOUND


def test_exp_before_the_mask_would_overflow():
    """C31: -2 a step over 64 tokens, exp(126) above the diagonal."""
    args = inputs(64)
    args = *args[:3], torch.full_like(args[3], -2.0), *args[4:]
    assert error(chunked_delta_rule(*args), oracle_rule(*args)) <= 1e-6
    D = decay_matrix(torch.tensor([-1.0, -2.0, -INF, -3.0]))
    e = torch.tensor([-2.0, -3.0]).exp()
    want = torch.eye(4)
    want[1, 0], want[3, 2] = e[0], e[1]
    torch.testing.assert_close(D, want)


@both
def test_writes_of_every_strength(form):
    """beta 0 writes nothing, 1 replaces what stands at the key."""
    q, k, v, g, beta, S = inputs(66)
    g[:] = 0
    for size in (0.0, 1e-4, 1.0):
        beta[:] = size
        want = oracle_rule(q, k, v, g, beta, S)
        assert error(FORMS[form](q, k, v, g, beta, S), want) <= BOUND
    _, left = FORMS[form](q, k, v, g, 0 * beta, S)
    assert torch.equal(left, S)
    out, left = FORMS[form](k, k, v, g, beta, S)
    torch.testing.assert_close(out * 5**0.5, v, rtol=1e-5, atol=1e-5)


@both
def test_keys_that_are_nearly_the_same(form):
    """The worst case for the triangular system of a chunk."""
    q, k, v, g, beta, S = inputs(130)
    k = k[:, :1] + 1e-3 * k
    beta = 0.5 + beta / 2
    for gates in (g, 0 * g):
        want = oracle_rule(q, k, v, gates, beta, S)
        assert error(FORMS[form](q, k, v, gates, beta, S), want) <= BOUND


@both
def test_zero_and_tiny_keys(form):
    """C30: a zero vector stays zero, a tiny one stays short."""
    q, k, v, g, beta, S = inputs(40)
    k[:, 3], q[:, 5] = 0, 0
    k[:, 7] *= 1e-5
    q[:, 9] *= 1e-5
    want = oracle_rule(q, k, v, g, beta, S)
    got = FORMS[form](q, k, v, g, beta, S)
    assert error(got, want) <= BOUND
    assert got[0][:, 5].eq(0).all()


@both
def test_the_table_is_never_written(form):
    for T in (0, 1, 65):
        args = inputs(T)
        before = [x.clone() for x in args]
        out, S = FORMS[form](*args)
        for x, old in zip(args, before):
            assert torch.equal(x, old)
        assert T == 0 or S.data_ptr() != args[-1].data_ptr()


@both
def test_no_tokens(form):
    """C64: the table as it was, an output of length 0."""
    args = inputs(0)
    out, S = FORMS[form](*args)
    assert out.shape == (2, 0, 4, 3) and torch.equal(S, args[-1])
    out, S = FORMS[form](*args[:-1])
    assert out.shape == (2, 0, 4, 3) and torch.equal(S, torch.zeros_like(S))
    assert S.shape == (2, 4, 5, 3) and S.dtype == torch.float32


@both
def test_no_rows(form):
    out, S = FORMS[form](*inputs(3, B=0))
    assert out.shape == (0, 3, 4, 3) and S.shape == (0, 4, 5, 3)


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_inputs_keep_a_full_table(form, dtype):
    """C39: S is fp32 and exact; the output has v's type."""
    *args, S = inputs(70)
    args = [x.to(dtype) for x in args]
    out, left = FORMS[form](*args, S)
    assert out.dtype == dtype and left.dtype == torch.float32
    want = oracle_rule(*args, S)
    assert error((left, left), (want[1], want[1])) <= BOUND
    assert error((out, out), (want[0], want[0])) <= 0.01


def test_small_writes_add_up():
    """C39: 0.001 written 2,000 times is 2; a bf16 table stops at 0.5."""
    one, S = torch.ones(1, 1, 1, 1).bfloat16(), torch.zeros(1, 1, 1, 1)
    for _ in range(2000):
        strength = one[..., 0]
        _, S = delta_rule(one, one, S + 1e-3, 0 * strength, strength, S)
    assert abs(S.item() - 2) < 1e-2


@both
@pytest.mark.parametrize("gate", ["down to -2", "down to -20"])
def test_gradients(form, gate):
    """All inputs, the table too, through outputs and final table."""

    def gradients(rule):
        args = [x.requires_grad_() for x in leaves()]
        out, S = rule(*args)
        (out * weight_out).sum().add((S * weight_S).sum()).backward()
        return [x.grad for x in args]

    def leaves():
        q, k, v, g, beta, S = inputs(75)
        return q, k, v, GATES[gate](g / -2), beta, S

    _, _, weight_out, _, _, weight_S = inputs(75, seed=1)
    names = "q", "k", "v", "g", "beta", "S"
    for name, got, want in zip(
        names, gradients(FORMS[form]), gradients(delta_rule)
    ):
        assert (got - want).norm() <= 1e-5 * want.norm(), name


@both
def test_gradients_at_full_gates(form):
    q, k, v, g, beta, S = inputs(70)
    g[:, ::9] = -INF
    args = [x.requires_grad_() for x in (q, k, v, g, beta, S)]
    out, left = FORMS[form](*args)
    (out.sum() + left.sum()).backward()
    for name, x in zip(("q", "k", "v", "g", "beta", "S"), args):
        assert x.grad.isfinite().all(), name
    assert S.grad.eq(0).all() and g.grad[:, ::9].eq(0).all()


@both
def test_shape_errors_name_the_argument(form):
    good = dict(zip(("q", "k", "v", "g", "beta", "S"), inputs(6)))
    wrong = {
        "q": [good["q"][:, :5], good["q"][..., :4], good["q"][:, :, :1]],
        "k": [good["k"][0], good["k"][..., 0]],
        "v": [good["v"][:, :5], good["v"][0], good["v"][:1],
              good["v"][:, :, :3]],
        "g": [good["g"][:, :5], good["g"][..., None], good["g"][..., :2]],
        "beta": [good["beta"][:1], good["beta"][..., :1]],
        "S": [good["S"].mT, good["S"][0], good["S"][:, :2]],
    }  # fmt: skip
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=rf"^{name} (is|has) "):
                FORMS[form](**good | {name: value})
    q = k = good["k"].repeat_interleave(3, dim=2)  # 6 key heads, 4 values
    with pytest.raises(ValueError, match="v has 4 heads"):
        FORMS[form](**good | {"q": q, "k": k})


def test_chunk_size_must_be_positive():
    for size in (0, -1):
        with pytest.raises(ValueError, match="chunk_size"):
            chunked_delta_rule(*inputs(6), chunk_size=size)


@both
def test_any_strides(form):
    """Views are as good as tensors of their own."""
    args = inputs(70)
    spaced = [x.repeat_interleave(2, dim=-1)[..., ::2] for x in args]
    turned = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in args]
    want = FORMS[form](*args)
    for views in (spaced, turned):
        assert error(FORMS[form](*views), want) <= 1e-6
