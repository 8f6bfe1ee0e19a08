# Run with: python -m pytest tests/test_state.py
"""The memory is right for every split of the tokens and every mask.

The reference is one pass over each row's real tokens alone, without a
state: logits at real positions to 1e-4, and the state it leaves to 1e-5.
"""

from copy import deepcopy
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_checkpoints import FULL, LINEAR
from toy import (
    VOCAB,
    random_ids,
    row_state,
    state_error,
    toy_config,
    toy_model,
)

import qwen.cache
import qwen.model
from qwen.cache import AttentionState, State

pytestmark = pytest.mark.usefixtures("memory_is_dirty")


def run(model, ids, mask, parts, state=None):
    """All pieces through one state -> (logits, state)."""
    state = State(model, len(ids)) if state is None else state
    logits = [
        model(ids[:, part], state=state, mask=mask[:, part]) for part in parts
    ]
    return torch.cat(logits, dim=1), state


def slices(sizes):
    """[2, 0, 3] -> the slices 0:2, 2:2, 2:5."""
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return [slice(a, b) for a, b in zip(ends, ends[1:])]


def check_rows(model, ids, mask, logits, state):
    """Each row against a pass of its real tokens alone."""
    assert logits.isfinite().all()
    assert state.pos == ids.shape[1] and torch.equal(state.mask, mask)
    for row in range(len(ids)):
        real = ids[row, mask[row]][None]
        want = model(real)[0]
        if real.numel():
            assert (logits[row, mask[row]] - want).abs().max() <= 1e-4
        alone = State(model)
        model(real, state=alone)
        got = row_state(state, row)
        assert state_error(got, row_state(alone, 0)) <= 1e-5


@st.composite
def configs(draw):
    key_heads = draw(st.sampled_from([1, 2]))
    kv_heads = draw(st.sampled_from([1, 2]))
    return toy_config(
        layer_types=draw(
            st.lists(st.sampled_from([LINEAR, FULL]), min_size=1, max_size=4)
        ),
        linear_num_key_heads=key_heads,
        linear_num_value_heads=key_heads * draw(st.integers(1, 3)),
        linear_key_head_dim=draw(st.sampled_from([4, 7, 8])),
        linear_value_head_dim=draw(st.sampled_from([4, 6, 9])),
        linear_conv_kernel_dim=draw(st.integers(1, 5)),
        num_key_value_heads=kv_heads,
        num_attention_heads=kv_heads * draw(st.sampled_from([1, 2, 4])),
        tie_word_embeddings=draw(st.booleans()),
    )


built = cache(toy_model)  # one model a configuration


def mask_like(pattern, rows, parts, random):
    """A mask [rows, T] of which each row has its own share of real tokens."""
    T = parts[-1].stop
    columns = torch.arange(T).expand(rows, T)
    share = torch.randint(5, (rows, 1), generator=random) / 4  # 0 and 1, too
    if pattern == "left":
        return columns >= T - (share * T).long()
    if pattern == "right":
        return columns < (share * T).long()
    mask = torch.rand(rows, T, generator=random) < share
    if pattern == "pieces":  # a row takes no part in some of the calls
        for part in parts:
            mask[:, part] = torch.rand(rows, 1, generator=random) < share
    return mask | (pattern == "none")


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(
    config=configs(),
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 4),
    sizes=st.lists(
        st.sampled_from([0, 1, 2, 3, 63, 64, 65]) | st.integers(4, 40),
        min_size=1,
        max_size=6,
    ),
    pattern=st.sampled_from(["none", "left", "right", "holes", "pieces"]),
)
def test_any_split_of_any_mask(config, seed, rows, sizes, pattern):
    """C29, C43, C45, C47, C48, C55, C57, C59, C62, C64: pads anywhere."""
    model, parts = built(config), slices(sizes)
    random = torch.Generator().manual_seed(seed)
    mask = mask_like(pattern, rows, parts, random)
    ids = random_ids(rows, sum(sizes), seed)
    logits, state = run(model, ids, mask, parts)
    check_rows(model, ids, mask, logits, state)
    again = model(ids, mask=mask)
    assert (logits - again)[mask].abs().le(1e-4).all()


SIZES = [
    [1] * 12,
    [0, 5, 0, 0, 4],
    [2, 1],  # C57
    *([n, 9 - n] for n in range(1, 9)),  # C55, C62
    [1, 1, 1, 9],
    [2, 1, 2, 1, 3],  # shorter than the convolution's window
    [63, 1, 1, 63],
    [64, 64],
    [65, 2, 65],
    [63, 65, 64, 1],
    [1, 127, 3],
    [130],
    [600],
    [3, 513],
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("padding", ["none", "left", "right", "holes"])
def test_sizes(model, sizes, padding):
    """C55, C57, C62, C64: only the state says what came before."""
    T = sum(sizes)
    ids, lengths = random_ids(3, T), torch.tensor([T, 2, (T + 1) // 2])
    columns = torch.arange(T).expand(3, T)
    mask = {
        "none": columns >= 0,
        "left": columns >= T - lengths[:, None],
        "right": columns < lengths[:, None],
        "holes": (columns * 7 + lengths[:, None]) % 5 < 3,
    }[padding]
    logits, state = run(model, ids, mask, slices(sizes))
    check_rows(model, ids, mask, logits, state)


@pytest.mark.parametrize("prefix", [0, 1, 5, 64])
def test_tokens_that_come_together(model, prefix):
    """C59: each reads the prefix and its own kind up to itself, no more."""
    ids = random_ids(1, prefix + 3)
    state, steps = State(model), State(model)
    for s in (state, steps):
        model(ids[:, :prefix], state=s)
    together = model(ids[:, prefix:], state=state)[0]
    for t in range(3):
        part = slice(prefix + t, prefix + t + 1)
        alone = model(ids[:, part], state=steps)[0, 0]
        assert (together[t] - alone).abs().max() <= 1e-4
        other, changed = ids.clone(), State(model)
        other[:, part] = (other[:, part] + 1) % VOCAB
        model(other[:, :prefix], state=changed)
        moved = model(other[:, prefix:], state=changed)[0] - together
        moved = moved.abs().amax(-1)
        assert moved[:t].eq(0).all() and moved[t:].gt(0).all()


def test_one_row_with_padding(model):
    """C43: a batch of one is padded like any other."""
    ids = torch.tensor([[9, 9, 9, 5, 6, 7]])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1]])
    want = model(ids[:, 3:])
    for kind in (torch.bool, torch.int64, torch.float32):
        got = model(ids, mask=mask.to(kind))
        assert (got[:, 3:] - want).abs().max() <= 1e-5


def test_the_mask_says_what_is_padding(model):
    """C48: not the id. Equal lengths, and a real token with a pad's id."""
    ids = torch.tensor([[0, 4, 0, 5], [6, 0, 7, 0]])
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]]).bool()
    logits, state = run(model, ids, mask, [slice(0, 4)])
    check_rows(model, ids, mask, logits, state)


def test_pads_change_nothing_on_a_warm_state(model):
    """C45: neither the table nor the convolution's window, not by a bit."""
    ids = random_ids(2, 9)
    real = torch.ones_like(ids).bool()
    for T in (1, 2, 3, 64, 65):
        for new in (torch.zeros(2, T), torch.tensor([[0.0], [1.0]])):
            state = State(model, 2)
            model(ids, state=state)
            before = row_state(state, 0)
            pads = torch.zeros(2, new.shape[1]).long()
            assert model(pads, state=state, mask=new).isfinite().all()
            after = row_state(state, 0)
            assert all(torch.equal(before[n], after[n]) for n in before)
            assert state.pos == 9 + new.shape[1]
            out, _ = run(model, ids, real, [slice(0, 4), slice(4, 9)], state)
            want = model(ids[:1].repeat(1, 2))
            assert (out[0] - want[0, 9:]).abs().max() <= 1e-4


def test_positions_are_each_row_s_own(model, monkeypatch):
    """C47: cumsum(mask) - 1, in every piece and while decoding."""
    seen, tables = [], qwen.model.rope_tables

    def spy(positions, *rest):
        seen.append(positions)
        return tables(positions, *rest)

    monkeypatch.setattr(qwen.model, "rope_tables", spy)
    mask = torch.tensor(
        [[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1, 0]]
    ).bool()
    parts = [slice(0, 5), slice(5, 6), slice(6, 7)]
    run(model, random_ids(3, 7), mask, parts)
    got = torch.cat(seen, dim=1)
    want = mask.cumsum(1) - 1
    assert torch.equal(got[mask], want[mask])
    assert got.min() == 0


def too_much():
    """What a CPU says when memory runs out."""
    torch.Tensor.new_zeros(torch.zeros(1), 2**46)


def raising(error):
    """A function that raises `error`, or calls it if it is no error."""

    def fail(*_, **__):
        if not isinstance(error, type):
            return error()
        raise error

    return fail


FAILURES = {
    "Ctrl-C": KeyboardInterrupt,
    "a GPU's memory": torch.OutOfMemoryError,
    "a CPU's memory": too_much,
}


def leaves_no_trace(state, call):
    """`call` raises; the state is then as it was, to the bit."""
    before = deepcopy(state)
    with pytest.raises((KeyboardInterrupt, RuntimeError)) as caught:
        call()
    assert torch.equal(state.mask, before.mask)
    for row in range(len(state.mask)):
        assert state_error(row_state(state, row), row_state(before, row)) == 0
    return caught


@pytest.mark.parametrize("error", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("warm", [0, 1, 9])
@pytest.mark.parametrize("new", [1, 5, 70])
def test_a_failure_inside_undoes_the_call(model, error, layer, warm, new):
    ids = random_ids(2, warm + new + 3)
    state = State(model, 2)
    first, then, last = (
        ids[:, :warm], ids[:, warm : warm + new], ids[:, warm + new :],
    )  # fmt: skip
    model(first, state=state)
    place = model.layers[layer].mlp
    with place.register_forward_hook(raising(error)):
        caught = leaves_no_trace(state, lambda: model(then, state=state))
    if error is too_much:  # torch's own words get through
        assert f"allocate {2**48} bytes" in str(caught.value)
    out = [model(x, state=state) for x in (then, last)]
    out = torch.cat(out, dim=1)
    assert (out - model(ids)[:, warm:]).abs().max() <= 1e-4
    check_rows(
        model, ids, torch.ones_like(ids).bool(), model(ids), state
    )  # fmt: skip


@pytest.mark.parametrize("buffer", [0, 1])
@pytest.mark.parametrize("warm", [0, 1, 5])
def test_no_room_for_keys_or_values(model, buffer, warm, monkeypatch):
    """The first grows and the second doesn't: neither counts."""
    ids, state = random_ids(1, warm + 9), State(model)
    model(ids[:, :warm], state=state)
    calls, grown = [], qwen.cache._grown

    def growing(*args):
        calls.append(args)
        return too_much() if len(calls) == buffer + 1 else grown(*args)

    monkeypatch.setattr(qwen.cache, "_grown", growing)
    leaves_no_trace(state, lambda: model(ids[:, warm:], state=state))
    attention, new = deepcopy(state.layers[3]), torch.ones(1, 2, 3, 8)
    calls.clear()
    with pytest.raises(RuntimeError, match="allocate"):
        attention.append(new, new)
    monkeypatch.undo()
    for s in (attention, state.layers[3]):
        assert s.append(new, new)[1].shape[2] == s.length == warm + 3


@pytest.mark.parametrize("bad", [-1, -(2**40), VOCAB, 2**40])
def test_a_bad_id_is_named(model, bad):
    ids, state = random_ids(2, 6), State(model, 2)
    model(ids, state=state)
    before = deepcopy(state)
    wrong = ids.clone()
    wrong[1, 3] = bad
    for given_state in (None, state):
        with pytest.raises(ValueError, match=f"id {bad} .*0..{VOCAB - 1}"):
            model(wrong, state=given_state)
    assert state.pos == 6
    for row in range(2):
        assert state_error(row_state(state, row), row_state(before, row)) == 0


def test_what_are_no_ids(model):
    ids = random_ids(2, 6)
    for wrong in (
        ids.float(),
        ids.bool(),
        ids.to(torch.uint8),
        ids.to(torch.complex64),
        ids[0],
        ids[None],
        torch.tensor(3),
        torch.empty(1, 0),
    ):
        with pytest.raises(ValueError, match="ids must be int64 or int32"):
            model(wrong)
    assert torch.equal(model(ids.int()), model(ids))


def test_shapes_that_do_not_fit(model):
    ids, state = random_ids(2, 6), State(model, 2)
    for mask in (torch.ones(2, 5), torch.ones(1, 6), torch.ones(6)):
        with pytest.raises(ValueError, match="mask"):
            model(ids, mask=mask)
    with pytest.raises(ValueError, match="3 rows of ids, 2 in the state"):
        model(random_ids(3, 6), state=state)
    with pytest.raises(ValueError, match="logits_to_keep"):
        model(ids, logits_to_keep=-1)
    other = toy_model(toy_config(layer_types=[LINEAR, FULL]))
    with pytest.raises((ValueError, AttributeError)):
        other(ids, state=state)
    assert state.pos == 0 and state.layers[3].length == 0
    assert all(s.S.eq(0).all() for s in state.layers[:3])


def test_an_empty_piece(model):
    """C64: nothing happens, on a fresh state and on a warm one."""
    none = torch.zeros(2, 0).long()
    state = State(model, 2)
    for pos in (0, 5):
        before = deepcopy(state)
        for mask in (None, none.bool()):
            out = model(none, state=state, mask=mask)
            assert out.shape == (2, 0, VOCAB) and out.dtype == torch.float32
        assert state.pos == pos == before.pos
        for row in range(2):
            was = row_state(before, row)
            assert state_error(row_state(state, row), was) == 0
        model(random_ids(2, 5), state=state)
    assert model(none, logits_to_keep=1).shape == (2, 0, VOCAB)


def test_no_rows(model):
    """C50: a batch that was filtered to nothing."""
    state = State(model, 0)
    for T in (3, 1):
        ids = torch.zeros(0, T).long()
        assert model(ids, state=state).shape == (0, T, VOCAB)
        assert model(ids, mask=ids.bool()).shape == (0, T, VOCAB)
    assert state.pos == 4 and state.megabytes() == 0


def test_logits_to_keep(model):
    ids = random_ids(2, 6)
    everything = model(ids)
    for n in range(9):
        state = State(model, 2)
        for given_state in (None, state):
            kept = model(ids, state=given_state, logits_to_keep=n)
            want = everything[:, -n:]
            assert kept.shape == want.shape
            assert (kept - want).abs().max() <= 1e-5


def test_gradients_only_without_a_state():
    model, ids = toy_model(), random_ids(2, 70)
    mask = torch.rand(2, 70) < 0.8
    model(ids, mask=mask).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), name
    state = State(model, 2)
    assert not model(ids, state=state).requires_grad
    assert not model(ids[:, :0], state=state).requires_grad
    for row in range(2):
        held = row_state(state, row)
        assert not any(x.requires_grad for x in held.values())


def test_states_share_nothing(model):
    """C53, C91: two copies go their own ways, and so do two rows."""
    ids = random_ids(1, 5)
    state = State(model)
    model(ids, state=state)
    other, pair = deepcopy(state), State(model, 2)
    model(ids.repeat(2, 1), state=pair)
    for token in (3, 4, 5):
        a = model(torch.tensor([[token]]), state=state)
        b = model(torch.tensor([[token + 9]]), state=other)
        both = model(torch.tensor([[token], [token + 9]]), state=pair)
        assert (both - torch.cat([a, b])).abs().max() <= 1e-5
    real = torch.ones(1, 8).bool()
    for one, new in (state, [3, 4, 5]), (other, [12, 13, 14]):
        fed = torch.cat([ids, torch.tensor([new])], dim=1)
        check_rows(model, fed, real, model(fed), one)


def test_what_was_held_is_never_written(model):
    """References taken before a call show the old values after it."""
    state, ids = State(model, 2), random_ids(2, 9)
    model(ids, state=state)
    held = [x for row in range(2) for x in row_state(state, row).values()]
    held += [state.mask, state.layers[3].k, state.layers[3].v]
    copies = [x.clone() for x in held]
    for T in (1, 9, 70):
        model(random_ids(2, T), state=state)
        assert all(torch.equal(a, b) for a, b in zip(held, copies))


def test_memory_is_counted():
    config = toy_config()
    model = toy_model(config)
    for batch in (1, 3):
        state = State(model, batch)
        channels = 2 * 2 * 4 + 4 * 6
        linear = 3 * 4 * (3 * channels + 4 * 4 * 6) * batch
        assert state.nbytes == linear and state.megabytes() == linear / 2**20
        for pos in range(1, 40):
            model(random_ids(batch, 1), state=state)
            full = 2 * 4 * 2 * 8 * pos * batch
            assert state.pos == pos
            assert state.megabytes() == (linear + full) / 2**20
            assert full <= state.nbytes - linear <= 2 * full
        for layer in state.layers[:3]:  # no view of a larger tensor
            for x in (layer.S, layer.conv):
                assert x.untyped_storage().nbytes() == x.nbytes


def test_a_step_copies_one_token(model):
    """The buffers are replaced a few times only, not at every step."""
    state, buffers = State(model), set()
    for _ in range(100):
        model(torch.tensor([[1]]), state=state)
        attention = state.layers[3]
        assert isinstance(attention, AttentionState)
        buffers.add(attention.k_buffer.shape[2])
    assert len(buffers) <= 8
