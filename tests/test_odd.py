"""Inputs that nobody meant: named at once, or read rightly."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toy import random_ids, rope, toy_config, toy_model

import qwen.__main__ as cli
from qwen import load
from qwen.cache import State
from qwen.generation import generate, probabilities, sample
from qwen.tokenizer import StreamDecoder

LINEAR, FULL = "linear_attention", "full_attention"
ROOT = Path(__file__).parent.parent


@pytest.fixture
def default_dtype():
    """Set torch's default type for one test."""
    yield torch.set_default_dtype
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": rope(0.5, rope_theta=10.0)},  # shapes fit
        {"layer_types": [LINEAR, FULL]},
        {"layer_types": [FULL, LINEAR, LINEAR, LINEAR]},
        {"linear_num_value_heads": 6},
    ],
    ids=str,
)
def test_a_state_of_another_model(model, changes):
    state = State(toy_model(toy_config(**changes)))
    with pytest.raises(ValueError, match="state .* another config"):
        model(random_ids(1, 3), state=state)
    with pytest.raises(ValueError, match="state .* another config"):
        generate(model, [1, 2], state=state)
    assert state.pos == 0


@pytest.mark.parametrize("value", [-torch.inf, torch.nan, 0.5, -1, 2])
def test_a_mask_holds_zeros_and_ones(model, value):
    """One that is to be added, 0 and -inf, would be read inside out."""
    state, mask = State(model), torch.tensor([[0, value, 1]])
    with pytest.raises(ValueError, match="mask must be"):
        model(random_ids(1, 3), state=state, mask=mask)
    assert state.pos == 0


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str
)
def test_the_default_type_does_not_matter(model, dtype, default_dtype):
    logits = torch.tensor([0.899, 0.1, 0.001]).log()
    want = probabilities(logits, 1.0, top_p=0.9)
    default_dtype(dtype)
    assert torch.equal(probabilities(logits, 1.0, top_p=0.9), want)
    state = State(model)
    for _ in range(2):
        for layer in state.layers[:3]:
            assert layer.conv.dtype == layer.S.dtype == torch.float32
        model(random_ids(1, 3), state=state)


def test_the_default_device_does_not_matter(model):
    logits = torch.randn(5)
    want = probabilities(logits, 1.0, top_p=0.9)
    with torch.device("meta"):
        assert torch.equal(probabilities(logits, 1.0, top_p=0.9), want)


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers(temperature, value):
    broken = toy_model()
    with torch.no_grad():
        broken.lm_head.weight[3] = value
    state = State(broken)
    with pytest.raises(ValueError, match="largest logit is (nan|inf)"):
        next(generate(broken, [1], temperature=temperature, state=state))
    assert state.pos == 0
    with pytest.raises(ValueError, match="largest logit is -inf"):
        sample(torch.full((4,), -torch.inf), torch.Generator(), temperature)


def test_the_prompt_is_read_at_the_call(model):
    ids = torch.tensor([1, 2, 3])
    tokens, want = generate(model, ids, 3), list(generate(model, ids, 3))
    ids[:] = 5
    assert list(tokens) == want


def test_two_generators_on_one_state(model):
    state = State(model)
    one = generate(model, [1, 2], 5, state=state)
    other = generate(model, [3], 5, state=state)
    next(one)
    next(other)
    with pytest.raises(ValueError, match="state has moved on"):
        next(one)
    assert state.pos == 3
    next(other)
    assert state.pos == 4


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": None},
        {"temperature": "1"},
        {"temperature": 10**400},
        {"top_p": None},
        {"min_p": "x"},
        {"repetition_penalty": None},
        {"repetition_penalty": 10**400},
        {"repetition_penalty": 1e-320},
        {"seed": 1.5},
        {"seed": "1"},
        {"seed": -1},
        {"seed": 2**64},
    ],
    ids=str,
)
def test_settings_of_odd_types_are_named(model, bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        generate(model, [1, 2], **bad)


@pytest.mark.parametrize("stop", [[2.7], "12", [None], torch.tensor([2.7])])
def test_what_are_no_stop_ids(model, stop):
    with pytest.raises(TypeError):
        generate(model, [1, 2], stop_ids=stop)


def test_seeds_of_other_int_types(model):
    numpy = pytest.importorskip("numpy")
    texts = [
        list(generate(model, [1], 5, temperature=1.0, seed=seed))
        for seed in (1, numpy.int64(1), True)
    ]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    "rows", [None, "ab", {0}, [None], [2**70], torch.zeros(0).bool()], ids=str
)
def test_rows_of_odd_types_are_named(model, rows):
    with pytest.raises(ValueError, match="rows"):
        State(model, 2).select(rows)


def test_ids_for_a_decoder():
    tokenizer = load()[1]
    for bad in (3.7, "3", b"3", None, float("nan"), torch.tensor(3.7)):
        with pytest.raises(TypeError):
            StreamDecoder(tokenizer).push(bad)
    with pytest.raises(TypeError):
        tokenizer.decode("34")


def test_messages_that_can_be_read_once():
    tokenizer = load()[1]
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.chat(iter(messages)) == tokenizer.chat(messages)


@pytest.mark.parametrize("content", [None, 5, b"hi", [{"text": "hi"}]])
def test_a_message_is_text(content):
    tokenizer = load()[1]
    with pytest.raises(ValueError, match="content"):
        tokenizer.chat([{"role": "user", "content": content}])
    with pytest.raises(ValueError, match="content"):
        tokenizer.chat([{"role": "user"}])


# the command


def test_ctrl_c_while_a_word_is_shown(monkeypatch):
    """A reader that is slow: the text is on its way, the flush waits."""
    shown = []

    class Slow:
        def write(self, text):
            shown.extend([text] if text else [])

        def flush(self):
            if shown == ["In"]:
                shown.append("^C")
                raise KeyboardInterrupt

    def tokens(*_, **__):
        yield from tokenizer.encode("In the")

    model, tokenizer = load()
    monkeypatch.setattr(cli, "generate", tokens)
    monkeypatch.setattr(sys, "stdout", Slow())
    options = cli.parse([])
    message = {"role": "user", "content": "hi"}
    said = cli.answer(model, tokenizer, [message], options)
    assert shown[:2] == ["In", "^C"] and said == "In"
    assert "".join(shown) == "In^C\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "redirection", ["2>&-", "2>/dev/full"], ids=["closed", "full"]
)
def test_the_answer_without_a_standard_error(redirection):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    question = "Mia put the red key in the drawer. Where is the key?"
    command = f"'{sys.executable}' -m qwen '{question}' {redirection}"
    done = subprocess.run(
        command, shell=True, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.count("\n") == 1 and "[" not in done.stdout
    assert len(done.stdout) > 2
