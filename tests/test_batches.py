# Run with: python -m pytest tests/test_batches.py
"""Rows that join, leave and change places: each remains its own single run.

The reference is a row's real tokens alone, in one pass: logits to 1e-4,
and what the state holds of the row to 1e-5.
"""

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

from qwen.cache import AttentionState, State

pytestmark = pytest.mark.usefixtures("memory_is_dirty")


def feed(model, state, rows):
    """Rows (lists of ids), padded on the left -> logits [B, T, V]."""
    T = max(map(len, rows), default=1)
    ids = torch.zeros(len(rows), T, dtype=torch.long)
    mask = torch.zeros(len(rows), T, dtype=torch.bool)
    for b, row in enumerate(rows):
        ids[b, T - len(row) :] = torch.tensor(row, dtype=torch.long)
        mask[b, T - len(row) :] = True
    return model(ids, state=state, mask=mask)


def check(model, state, rows):
    """`state` holds `rows`, the ids of each row, and nothing else of them."""
    assert state.mask.sum(1).tolist() == [len(row) for row in rows]
    for layer in state.layers:
        if isinstance(layer, AttentionState):
            assert layer.k.shape[2] == layer.v.shape[2] == state.pos
    for b, row in enumerate(rows):
        alone = State(model)
        model(torch.tensor([row], dtype=torch.long), state=alone)
        got, want = row_state(state, b), row_state(alone, 0)
        assert state_error(got, want) <= 1e-5


def decode(model, state, rows, steps=3):
    """Some steps, each row with ids of its own; logits as of single runs."""
    for step in range(steps):
        new = [(7 * b + step + 1) % VOCAB for b in range(len(rows))]
        ids = torch.tensor(new, dtype=torch.long)[:, None]
        logits = model(ids, state=state)
        rows = [row + [i] for row, i in zip(rows, new)]
        for b, row in enumerate(rows):
            want = model(torch.tensor([row]))[0, -1]
            assert (logits[b, -1] - want).abs().max() <= 1e-4
    check(model, state, rows)
    return rows


def bits(state):
    """Everything the state holds, copied."""
    tensors = [state.mask]
    for layer in state.layers:
        full = isinstance(layer, AttentionState)
        tensors += [layer.k, layer.v] if full else [layer.conv, layer.S]
    return [x.clone() for x in tensors]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def storages(state):
    """Where the memory of the layers begins, the room to spare included."""
    return {
        x.untyped_storage().data_ptr()
        for layer in state.layers
        for x in vars(layer).values()
        if torch.is_tensor(x) and x.numel()
    }


ROWS = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11]]


@pytest.fixture
def warm(model):
    """Three ragged rows, with pads between their tokens, too."""
    state = State(model, 3)
    feed(model, state, [row[:-1] for row in ROWS])
    feed(model, state, [row[-1:] + [20] * b for b, row in enumerate(ROWS)])
    return state


WARM = [row + [20] * b for b, row in enumerate(ROWS)]


# any order of events

CONFIGS = {
    "hybrid": {"layer_types": [LINEAR, FULL]},
    "attention": {"layer_types": [FULL, FULL], "num_key_value_heads": 1},
    "linear": {"layer_types": [LINEAR], "linear_conv_kernel_dim": 1},
    "wide": {
        "layer_types": [FULL, LINEAR, LINEAR],
        "linear_conv_kernel_dim": 6,
        "linear_num_value_heads": 6,
        "tie_word_embeddings": True,
    },
}


@cache
def built(name):
    return toy_model(toy_config(**CONFIGS[name]))


LENGTHS = st.sampled_from([0, 0, 1, 1, 1, 2, 3, 7, 63, 64, 65])
EVENTS = st.lists(
    st.sampled_from(["feed", "feed", "select", "concat", "clone"]),
    min_size=2,
    max_size=7,
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(list(CONFIGS)), EVENTS, st.data())
def test_any_order_of_events(name, events, data):
    """C43, C47, C50, C53: states split, join and go on by themselves."""
    model, draw = built(name), data.draw
    rows = draw(st.integers(0, 3))
    held = [(State(model, rows), [[] for _ in range(rows)])]
    for event in events:
        n = draw(st.integers(0, len(held) - 1))
        state, rows = held[n]
        before = bits(state)
        if event == "feed":
            new = [random_ids(1, draw(LENGTHS))[0].tolist() for _ in rows]
            logits = feed(model, state, new)
            assert logits.isfinite().all()
            held[n] = state, [row + more for row, more in zip(rows, new)]
            for b, more in enumerate(new):
                ids = torch.tensor([held[n][1][b]], dtype=torch.long)
                want = model(ids)[0, len(rows[b]) :]
                got = logits[b, logits.shape[1] - len(more) :]
                assert (got - want).abs().le(1e-4).all()
            continue
        if event == "select":
            which = st.lists(st.integers(0, len(rows) - 1), max_size=4)
            which = draw(which) if rows else []
            new = state.select(which), [rows[b] for b in which]
        elif event == "clone":
            new = state.clone(), rows
        else:
            other, more = held[draw(st.integers(0, len(held) - 1))]
            new = State.concat([state, other]), rows + more
            assert new[0].pos == max(state.pos, other.pos)
        held.append(new)
        assert same(bits(state), before)
    for state, rows in held:
        check(model, state, rows)


# select


@pytest.mark.parametrize(
    "rows, picked",
    [
        ([0, 1, 2], [0, 1, 2]),
        ([2, 0, 1], [2, 0, 1]),
        ([1], [1]),
        ([2] * 5, [2] * 5),
        ((0, 2), [0, 2]),
        (range(2), [0, 1]),
        ([], []),
        (torch.tensor([2, 1]), [2, 1]),
        (torch.tensor([1, 0], dtype=torch.int32), [1, 0]),
        (torch.tensor([True, False, True]), [0, 2]),
        (torch.tensor([False] * 3), []),
        ([False, True, True], [1, 2]),
    ],
    ids=str,
)
def test_select(model, warm, rows, picked):
    """C50, C53: reorder, drop, repeat; then each row goes on by itself."""
    before, state = bits(warm), warm.select(rows)
    assert state.pos == warm.pos and same(bits(warm), before)
    for old, new in zip(before, bits(state), strict=True):
        assert torch.equal(new, old[picked]) and new.dtype == old.dtype
    decode(model, state, [WARM[b] for b in picked])
    assert same(bits(warm), before)
    decode(model, warm, WARM)


def test_reordered_rows_share_nothing(model, warm):
    """C53: [1, 1, 0], then each row decodes tokens of its own."""
    state = warm.select([1, 1, 0])
    for x in bits(state)[1:]:
        assert torch.equal(x[0], x[1])
    decode(model, state, [WARM[1], WARM[1], WARM[0]])
    assert not torch.equal(state.layers[0].S[0], state.layers[0].S[1])


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 9])
def test_select_after_growth(model, steps):
    """A buffer with room to spare: only what is used is copied."""
    state, rows = State(model, 2), [[], []]
    rows = decode(model, state, rows, steps)
    part = state.select([1])
    attention = part.layers[3]
    assert attention.length == state.layers[3].length == steps
    assert attention.k_buffer.shape[2] == steps
    decode(model, part, rows[1:])
    decode(model, state, rows)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_states_share_no_memory(model, steps):
    """C91: not even the room to spare, and neither sees the other write."""
    state = State(model, 2)
    rows = decode(model, state, [[], []], steps)
    copies = {
        "clone": (state.clone(), rows),
        "select": (state.select([0, 1]), rows),
        "concat": (State.concat([state]), rows),
        "twice": (State.concat([state, state]), rows + rows),
    }
    for name, (other, held) in copies.items():
        assert not storages(state) & storages(other), name
        kept, theirs = bits(state), bits(other)
        decode(model, other, held)
        assert same(bits(state), kept), name
        other, theirs = other.clone(), bits(other)
        for layer in state.layers:  # as if kernels wrote in place
            for x in vars(layer).values():
                if torch.is_tensor(x):
                    x += 1
        assert same(bits(other), theirs), name
        for layer in state.layers:
            for x in vars(layer).values():
                if torch.is_tensor(x):
                    x -= 1


@pytest.mark.parametrize("bad", [-1, 3, -(2**40), 2**40])
def test_a_row_that_does_not_exist(warm, bad):
    before = bits(warm)
    for rows in ([bad], [0, bad, 1], torch.tensor([2, bad])):
        with pytest.raises(ValueError, match=f"no row {bad} in a batch of 3"):
            warm.select(rows)
    with pytest.raises(ValueError, match="no row 0 in a batch of 0"):
        warm.select([]).select([0])
    assert same(bits(warm), before)


@pytest.mark.parametrize(
    "rows",
    [0, [[0]], [0.0], [True], [True] * 4, torch.zeros(3, 1).bool()],
    ids=str,
)
def test_what_are_no_rows(warm, rows):
    with pytest.raises(ValueError, match="rows must be ints, or 3 bools"):
        warm.select(rows)


# no rows at all


@pytest.mark.parametrize("none", [[], torch.tensor([False] * 3)], ids=str)
def test_all_rows_leave(model, warm, none):
    """C50: all are done in the same step; the empty batch works on."""
    empty = warm.select(none)
    assert empty.pos == warm.pos and empty.megabytes() == empty.nbytes == 0
    for T in (1, 0, 3):
        ids = torch.zeros(0, T).long()
        assert model(ids, state=empty).shape == (0, T, VOCAB)
    assert empty.pos == warm.pos + 4
    for again in (empty.select([]), empty.clone(), State.concat([empty])):
        assert again.pos == empty.pos and len(again.mask) == 0
    joined = State.concat([empty, warm, State(model, 0), empty])
    assert joined.pos == empty.pos
    decode(model, joined, WARM)


def test_rows_leave_before_the_first_token(model):
    """C50: no token yet, so nothing to cut or to count."""
    for state, rows in (
        (State(model, 3).select([]), []),
        (State(model, 3).select([1, 2]), [[], []]),
        (State.concat([State(model, 2), State(model, 0)]), [[], []]),
    ):
        assert state.pos == 0 and len(state.mask) == len(rows)
        decode(model, state, rows)
    later = State.concat([State(model, 3).select([]), State(model)])
    feed(model, later, [[5, 6, 7]])
    check(model, later, [[5, 6, 7]])


# concat


def test_concat(model, warm):
    """Shorter rows get masked columns on the left, and stay what they are."""
    short, fresh = State(model, 2), State(model)
    feed(model, short, [[30, 31], [32]])
    parts = [short, warm, fresh]
    before = [bits(state) for state in parts]
    rows = [[30, 31], [32], *WARM, []]
    state = State.concat(iter(parts))
    assert state.pos == warm.pos > short.pos
    gap = warm.pos - short.pos
    assert not state.mask[:2, :gap].any() and not state.mask[5].any()
    assert torch.equal(state.mask[:2, gap:], short.mask)
    assert torch.equal(state.layers[3].k[:2, :, gap:], short.layers[3].k)
    check(model, state, rows)
    decode(model, state, rows)
    assert all(same(bits(s), was) for s, was in zip(parts, before))


def test_concat_undoes_a_split(warm):
    parts = [warm.select([b]) for b in range(3)]
    assert same(bits(State.concat(parts)), bits(warm))


def test_what_can_not_be_joined(model):
    """No states, and states of another model."""
    with pytest.raises(ValueError, match="no states"):
        State.concat([])
    for change in (
        {"layer_types": [LINEAR, LINEAR, FULL, LINEAR]},
        {"linear_num_value_heads": 2},
        {"linear_conv_kernel_dim": 3},
        {"head_dim": 4},
    ):
        other = State(toy_model(toy_config(**change)))
        with pytest.raises(ValueError, match="different models"):
            State.concat([State(model), other])
    twin = State(toy_model(seed=1))  # the same shapes will do
    assert len(State.concat([State(model), twin]).mask) == 2


# modes


@pytest.mark.parametrize("steps", range(6))
def test_inference_mode_may_end(model, steps):
    """A state from inside torch.inference_mode goes on outside, and back."""
    rows = [[], []]
    with torch.inference_mode():
        state = State(model, 2)
        rows = decode(model, state, rows, steps)
        copies = state.clone(), state.select([1, 0]), State.concat([state])
    decode(model, copies[0], rows)
    decode(model, copies[1], rows[::-1])
    decode(model, copies[2], rows)
    rows = decode(model, state, rows)
    with torch.inference_mode():
        rows = decode(model, state, rows)
        decode(model, state.clone(), rows)


def test_memory_of_a_selection(model, warm):
    """Dropped rows are freed: no view of a larger tensor remains."""
    one = warm.select([0])
    assert one.nbytes * 3 == warm.select([0, 1, 2]).nbytes
    assert one.megabytes() * 3 == warm.megabytes()
    for layer in one.layers:
        for x in vars(layer).values():
            if torch.is_tensor(x):
                assert x.untyped_storage().nbytes() == x.nbytes
