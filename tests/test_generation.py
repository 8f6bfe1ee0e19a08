# Run with: python -m pytest tests/test_generation.py
"""Choosing tokens, stopping, and what the state holds afterwards."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from toy import VOCAB, random_ids, row_state, state_error, toy_model
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import qwen.generation
from qwen import generate, load
from qwen.cache import State
from qwen.generation import penalise, probabilities, sample
from qwen.weights import BUNDLED

PROMPT = random_ids(1, 7, seed=3)[0].tolist()


@pytest.fixture(scope="module")
def model():
    return toy_model(seed=2)


@pytest.fixture(scope="module")
def greedy(model):
    """Twelve tokens by full recompute, the book's oracle."""
    ids = list(PROMPT)
    for _ in range(12):
        ids.append(model(torch.tensor([ids]))[0, -1].argmax().item())
    return ids[len(PROMPT) :]


def assert_holds(model, state, ids):
    """The state is that of a single pass over `ids`."""
    assert state.pos == len(ids)
    want = State(model)
    model(torch.tensor([ids]).reshape(1, -1).long(), state=want)
    assert state_error(row_state(state, 0), row_state(want, 0)) <= 1e-5


# from logits to probabilities


def kept(p, **settings):
    """The ids that stay, for probabilities p at temperature 1."""
    got = probabilities(torch.tensor(p).log(), 1.0, **settings)
    assert got.dtype == torch.float64 and abs(got.sum().item() - 1) <= 1e-12
    return got.nonzero().flatten().tolist()


def test_top_p_boundary():
    """C107: the fewest likeliest whose sum reaches top_p, one at least."""
    p = [0.5, 0.3, 0.1, 0.1]
    assert kept(p, top_p=0.8) == [0, 1]
    assert kept(p, top_p=0.801) == [0, 1, 2]
    assert kept(p, top_p=0.5) == [0]
    assert kept([0.6, 0.4], top_p=0.5) == [0]
    assert kept([0.4, 0.6], top_p=0.5) == [1]
    assert kept([0.6, 0.4], top_p=0.6) == [0]
    for tiny in (0.0, 5e-324, 1e-9):
        assert kept(p, top_p=tiny) == [0]
    assert kept([0.25] * 4, top_p=0.5) == [0, 1]  # ties: the lowest ids
    assert kept([0.25] * 4, top_p=0.25) == [0]
    assert kept([0.25] * 4, top_p=0.26) == [0, 1]
    assert kept([0.1] * 10, top_p=0.7) == list(range(7))
    for n in range(1, 10):
        assert len(kept([0.1] * 10, top_p=n / 10)) == n


def test_top_p_of_one_keeps_all():
    """C107: also where the rest is lost beside 1 in fp32."""
    got = probabilities(torch.tensor([0.0, -20.0, -40.0, -700.0]), 1.0)
    assert got.gt(0).all()
    assert kept([0.25] * 4, top_p=1.0) == [0, 1, 2, 3]
    tail = torch.full((1000,), -30.0)
    tail[7] = 0
    assert probabilities(tail, 1.0).gt(0).all()


def test_top_k():
    p = [0.1, 0.4, 0.2, 0.3]
    assert kept(p, top_k=1) == [1]
    assert kept(p, top_k=2) == [1, 3]
    for k in (0, 4, 5, 10**9):  # 0 is all, and so is k > vocabulary
        assert kept(p, top_k=k) == [0, 1, 2, 3]
    assert kept([0.25] * 4, top_k=3) == [0, 1, 2]


def test_min_p():
    p = [0.4, 0.3, 0.2, 0.1]
    assert kept(p, min_p=0.0) == [0, 1, 2, 3]
    assert kept(p, min_p=0.3) == [0, 1, 2]
    assert kept(p, min_p=0.7) == [0, 1]
    assert kept(p, min_p=1.0) == [0]
    assert kept([0.25] * 4, min_p=1.0) == [0, 1, 2, 3]


def test_filters_in_order():
    """top_p counts what top_k left: .5 of .8 is .625."""
    p = [0.5, 0.3, 0.1, 0.1]
    assert kept(p, top_k=2, top_p=0.6) == [0]
    assert kept(p, top_k=2, top_p=0.63) == [0, 1]
    assert kept(p, top_p=0.9, min_p=0.5) == [0, 1]


@pytest.mark.parametrize("temperature", [1e-45, 5e-324, 1e-300])
def test_tiny_temperatures(temperature):
    """C106: no inf - inf; all on the largest."""
    got = probabilities(torch.tensor([1.0, 3.0, 2.0, -5.0]), temperature)
    assert got.tolist() == [0, 1, 0, 0]
    got = probabilities(torch.tensor([3.0, 1.0, 3.0]), temperature)
    assert got.tolist() == [0.5, 0, 0.5]


def test_temperature():
    """C106: 0 is the argmax, ties go to the lowest id; 1 is the softmax."""
    logits = torch.tensor([1.0, 3.0, 2.0, 3.0])
    for _ in range(3):
        assert sample(logits, torch.Generator(), 0.0) == 1
    assert probabilities(logits, 0.0).tolist() == [0, 1, 0, 0]
    for size in (5, 1000, 248320):
        flat = torch.zeros(size)
        flat[size // 3 :] = 1
        assert sample(flat, torch.Generator(), 0) == size // 3
    for t in (0.5, 1.0, 2.0, 1e300):
        want = (logits.double() / t).softmax(-1)
        torch.testing.assert_close(probabilities(logits, t), want)


@pytest.mark.parametrize("shift", [-3e4, 0.0, 3e4])
def test_large_and_forbidden_logits(shift):
    logits = torch.tensor([1.0, -float("inf"), 2.0]) + shift
    got = probabilities(logits, 1.0, top_p=0.99, min_p=0.01)
    want = (logits.double() - logits.max()).softmax(-1)
    torch.testing.assert_close(got, want)
    assert got[1] == 0


FILTERS = {
    "top_k": (TopKLogitsWarper, [1, 2, 17, 100]),
    "top_p": (TopPLogitsWarper, [0.1, 0.5, 0.9, 0.999]),
    "min_p": (MinPLogitsWarper, [0.01, 0.1, 0.5, 1.0]),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_against_transformers(name):
    warper, values = FILTERS[name]
    for seed in range(30):
        torch.manual_seed(seed)
        logits = 3 * torch.randn(101)
        for value in values:
            want = warper(value)(None, logits[None])[0].double().softmax(-1)
            got = probabilities(logits, 1.0, **{name: value})
            torch.testing.assert_close(got, want)
            assert abs(got.sum().item() - 1) <= 1e-12


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 10.0])
def test_penalty_against_transformers(penalty):
    reference = RepetitionPenaltyLogitsProcessor(penalty)
    for seed in range(30):
        torch.manual_seed(seed)
        logits = 3 * torch.randn(50)
        logits[3] = 0
        seen = torch.randint(50, (1, 20))
        seen[0, :3] = torch.tensor([3, 9, 9])
        before = logits.clone()
        got = penalise(logits, seen[0].tolist(), penalty)
        assert torch.equal(got, reference(seen, logits[None])[0])
        assert torch.equal(logits, before)


@pytest.mark.parametrize(
    "settings",
    [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.2}, {"temperature": 0.5}],
    ids=str,
)
def test_frequencies(settings):
    """Chi-square: what is drawn has the probabilities it should have."""
    settings = {"temperature": 1.0} | settings
    torch.manual_seed(0)
    logits, draws = torch.randn(12), 4000
    random = torch.Generator().manual_seed(1)
    drawn = [sample(logits, random, **settings) for _ in range(draws)]
    want = probabilities(logits, **settings) * draws
    counts = torch.bincount(torch.tensor(drawn), minlength=12)
    likely = want > 0
    assert counts[~likely].eq(0).all()
    freedom = likely.sum().item() - 1
    chi = ((counts - want)[likely] ** 2 / want[likely]).sum().item()
    assert chi <= freedom + 4 * (2 * freedom) ** 0.5


# generating


def test_greedy_equals_full_recompute(model, greedy):
    ids = torch.tensor(PROMPT)
    for prompt in (
        PROMPT,
        tuple(PROMPT),
        ids,
        ids[None],
        ids.int(),
        ids.numpy(),
    ):
        got = list(generate(model, prompt, max_new_tokens=12))
        assert got == greedy and all(type(token) is int for token in got)


@pytest.mark.slow
def test_the_small_model_greedily():
    """C109: 200 tokens as by recompute, for prompt + 199 that entered."""
    model, tokenizer = load(BUNDLED, "cpu")
    question = "Mia put the red key in the drawer. Where is the key?"
    ids = tokenizer.chat([{"role": "user", "content": question}])
    entered, state = [], State(model)
    with model.register_forward_pre_hook(
        lambda _, args: entered.append(args[0].numel())
    ):
        got = list(generate(model, ids, max_new_tokens=200, state=state))
    assert len(got) == 200
    assert sum(entered) == state.pos == len(ids) + 199
    want = list(ids)
    for _ in got:
        row = model(torch.tensor([want]), logits_to_keep=1)[0, -1]
        want.append(row.argmax().item())
    assert ids + got == want
    assert_holds(model, state, want[:-1])


def test_a_budget_ends_it(model, greedy):
    for n in range(13):
        state = State(model)
        budget = n if n % 2 else np.int64(n)
        got = list(generate(model, PROMPT, budget, state=state))
        assert got == greedy[:n]
        assert_holds(model, state, PROMPT + greedy[: max(n - 1, 0)])


def test_zero_new_tokens(model, monkeypatch):
    """C105: nothing is drawn, and the state holds the prompt."""
    monkeypatch.setattr(qwen.generation, "sample", None)
    state = State(model)
    assert list(generate(model, PROMPT, max_new_tokens=0, state=state)) == []
    assert_holds(model, state, PROMPT)


def test_stop_ids(model, greedy):
    """C88, C102: any of them ends it; it is yielded, and nothing after."""
    absent = next(i for i in range(VOCAB) if i not in greedy)
    for n, token in enumerate(greedy):
        if token in greedy[:n]:
            continue
        ids = [absent, token]
        for stop in (ids, tuple(ids), set(ids), iter(ids), torch.tensor(ids)):
            state = State(model)
            got = list(generate(model, PROMPT, 12, stop_ids=stop, state=state))
            assert got == greedy[: n + 1]
            assert state.pos == len(PROMPT) + n
    assert list(generate(model, PROMPT, 12, stop_ids=[absent])) == greedy


def test_a_stop_id_in_the_prompt(model, greedy):
    """C104: only new tokens are looked at."""
    absent = [i for i in PROMPT if i not in greedy]
    assert absent
    assert list(generate(model, PROMPT, 12, stop_ids=absent)) == greedy


@pytest.mark.parametrize("n", [0, 1, 2, 12])
def test_every_token_enters_once(model, n):
    """C109: the prompt, then one token a step; the last does not enter."""
    sizes = []
    hook = model.register_forward_pre_hook(
        lambda _, args: sizes.append(tuple(args[0].shape))
    )
    list(generate(model, PROMPT, max_new_tokens=n))
    hook.remove()
    assert sizes == [(1, len(PROMPT))] + [(1, 1)] * max(n - 1, 0)


def test_nothing_runs_before_the_first_token_is_asked(model):
    state = State(model)
    tokens = generate(model, PROMPT, state=state)
    assert state.pos == 0
    next(tokens)
    assert state.pos == len(PROMPT)


def test_a_state_goes_on(model, greedy):
    """Two calls are one: the last token yielded enters with the second."""
    state = State(model)
    first = list(generate(model, PROMPT, 5, state=state))
    then = list(generate(model, first[-1:], 7, state=state))
    assert first + then == greedy
    assert_holds(model, state, PROMPT + greedy[:-1])
    # a turn of a conversation: the answer's last token and new text
    turn = [greedy[-1], 1, 2, 3]
    got = list(generate(model, turn, 4, state=state))
    assert got == list(generate(model, PROMPT + greedy[:-1] + turn, 4))


def test_a_seed_repeats_the_text(model):
    settings = {"temperature": 1.0, "top_p": 0.95}

    def text(seed):
        return list(generate(model, PROMPT, 20, seed=seed, **settings))

    torch.manual_seed(0)
    first = text(4)
    torch.manual_seed(1)  # the global generator has no part in it
    before = torch.get_rng_state()
    assert text(4) == first != text(5)
    assert text(None) != text(None)
    assert torch.equal(torch.get_rng_state(), before)


def test_settings_reach_the_choice(model, greedy):
    for settings in ({"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}):
        got = generate(model, PROMPT, 12, temperature=2.0, **settings)
        assert list(got) == greedy
    got = list(generate(model, PROMPT, 12, repetition_penalty=1e6))
    ids = PROMPT + got
    for n in range(len(PROMPT), len(ids)):
        row = model(torch.tensor([ids[:n]]))[0, -1]
        want = RepetitionPenaltyLogitsProcessor(1e6)(
            torch.tensor([ids[:n]]), row[None]
        )
        assert ids[n] == want[0].argmax()


def go_on(model, state, shown, greedy):
    """After an interruption: the state is right, and so is what follows."""
    assert shown == greedy[: len(shown)]
    if not shown:
        assert state.pos == 0
        assert list(generate(model, PROMPT, 12, state=state)) == greedy
        return
    assert_holds(model, state, PROMPT + shown[:-1])
    rest = 12 - len(shown)
    assert (
        list(generate(model, shown[-1:], rest, state=state))
        == (greedy[len(shown) :])
    )


@pytest.mark.parametrize("n", range(1, 6))
@pytest.mark.parametrize("how", ["throw", "close"])
def test_stopped_between_tokens(model, greedy, n, how):
    state = State(model)
    tokens = generate(model, PROMPT, 12, state=state)
    shown = [next(tokens) for _ in range(n)]
    if how == "close":
        tokens.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            tokens.throw(KeyboardInterrupt)
    go_on(model, state, shown, greedy)


@pytest.mark.parametrize("n", range(6))
@pytest.mark.parametrize("where", ["layer", "head", "model", "sample"])
def test_ctrl_c_inside_a_step(model, greedy, n, where, monkeypatch):
    """The step is undone: its token has not entered, as it led to none."""
    calls = 0

    def interrupt(*_):
        nonlocal calls
        calls += 1
        if calls == n + 1:
            raise KeyboardInterrupt

    place = {"layer": model.layers[2], "head": model.lm_head, "model": model}
    if where == "sample":

        def interrupted(*args):
            interrupt()
            return sample(*args)

        monkeypatch.setattr(qwen.generation, "sample", interrupted)
    else:
        hook = place[where].register_forward_hook(interrupt)
    state, shown = State(model), []
    with pytest.raises(KeyboardInterrupt):
        for token in generate(model, PROMPT, 12, state=state):
            shown.append(token)
    assert len(shown) == n
    if where == "sample":
        monkeypatch.undo()
    else:
        hook.remove()
    go_on(model, state, shown, greedy)


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_memory_runs_out_in_a_step(model, greedy, n, error):
    """The error gets through; the same state goes on when there is room."""
    calls, state, shown = [], State(model), []

    def fail(*_):
        calls.append(1)
        if len(calls) == n + 1:
            raise error("out of memory: 9 GiB asked for")

    with model.layers[3].mlp.register_forward_hook(fail):
        with pytest.raises(error, match="9 GiB"):
            for token in generate(model, PROMPT, 12, state=state):
                shown.append(token)
    assert len(shown) == n
    go_on(model, state, shown, greedy)


@pytest.mark.parametrize("bad", [-1, VOCAB])
def test_a_bad_id_in_a_later_turn(model, greedy, bad):
    """It is named at the call, and the conversation goes on without it."""
    state = State(model)
    shown = list(generate(model, PROMPT, 4, state=state))
    with pytest.raises(ValueError, match=f"id {bad} is outside 0..36"):
        generate(model, [shown[-1], 1, bad], 4, state=state)
    go_on(model, state, shown, greedy)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_new_tokens": -1},
        {"max_new_tokens": 2.5},
        {"max_new_tokens": 2.0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": -0.1},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": -1.0},
        {"repetition_penalty": float("nan")},
        {"repetition_penalty": float("inf")},
    ],
    ids=str,
)
def test_a_bad_setting_raises_at_the_call(model, bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        generate(model, PROMPT, **bad)


def test_a_bad_prompt_raises_at_the_call(model):
    ids = torch.tensor(PROMPT)
    for empty in ([], ids[:0], ids[None, :0]):
        with pytest.raises(ValueError, match="prompt"):
            generate(model, empty)
    for wrong in (ids.repeat(2, 1), ids[None, None], ids[0], [[1], [2]]):
        with pytest.raises(ValueError, match="prompt"):
            generate(model, wrong)
    for wrong in ([1.5, 2.0], ids.float(), [True]):
        with pytest.raises(ValueError, match="ids must be"):
            generate(model, wrong)
    for bad in (-1, VOCAB):
        with pytest.raises(ValueError, match=f"id {bad} "):
            generate(model, [1, bad])
    with pytest.raises(ValueError, match="2 in the state"):
        generate(model, PROMPT, state=State(model, 2))
    with pytest.raises(TypeError):
        generate(model, PROMPT, stop_ids=5)


def test_the_model_keeps_nothing(model, greedy):
    """Two generations side by side don't know of each other."""
    other = PROMPT[::-1]
    want = list(generate(model, other, 12))
    a = generate(model, PROMPT, 12)
    b = generate(model, other, 12)
    pairs = [(next(a), next(b)) for _ in range(12)]
    assert [list(x) for x in zip(*pairs)] == [greedy, want]


def test_a_branch_of_a_state(model, greedy):
    """A copy of the state goes another way; the first goes on as ever."""
    state = State(model)
    shown = list(generate(model, PROMPT, 4, state=state))
    branch = deepcopy(state)
    list(generate(model, [5, 5, 5], 6, state=branch, temperature=1.0, seed=0))
    go_on(model, state, shown, greedy)
