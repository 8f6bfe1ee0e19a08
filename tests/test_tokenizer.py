# Run: python -m pytest tests/test_tokenizer.py
"""Text to ids and back, streamed or whole; the chat template; stop ids."""

import json
import shutil

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tiny_checkpoints import (
    SPECIAL,
    TAGS,
    TEXT,
    tiny_config,
    tiny_core,
    write_json,
    write_tokenizer,
)
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Core

from qwen.tokenizer import StreamDecoder, Tokenizer, split_thinking
from qwen.weights import BUNDLED

TEMPLATE = (BUNDLED / "chat_template.jinja").read_text(encoding="utf-8")


in_any_time = settings(deadline=None)  # the machine may be busy


def with_template(template):
    return Tokenizer(tiny_core(), template, {2})


PLAIN = with_template(TEMPLATE)


def odd_core():
    """Added tokens of letters that byte-level BPE uses, or can't."""
    core = Core.from_str(tiny_core().to_str())
    odd = ["é", "ĠÃ", "two words", "社", "\n\n", "Ã©"]
    core.add_tokens([AddedToken(text, normalized=False) for text in odd])
    core.add_special_tokens(["<|é s|>"])
    return core


ODD = Tokenizer(odd_core(), None, ())


@pytest.fixture
def folder(tmp_path):
    write_tokenizer(tmp_path)
    return tmp_path


def stream(tokenizer, ids):
    decoder = StreamDecoder(tokenizer)
    return [*map(decoder.push, ids), decoder.flush()]


# text and ids


@in_any_time
@given(st.text())
def test_round_trip(text):
    assume(not any(token in text for token in SPECIAL))
    assert PLAIN.decode(PLAIN.encode(text)) == text


@pytest.mark.parametrize(
    "text", ["", "\0", "\r\n\t ", "社🙂é", TEXT, "".join(TAGS)]
)
def test_round_trip_of(text):
    ids = PLAIN.encode(text)
    assert PLAIN.decode(ids) == text
    assert all(type(i) is int for i in ids)


def test_special_tokens_are_no_text():
    ids = PLAIN.encode("<|im_start|>a<|im_end|>b<|endoftext|>")
    assert [ids[0], ids[2], ids[4]] == [1, 2, 0]
    assert PLAIN.decode(ids) == "ab"


def test_nothing_is_added(folder):
    """Nor cut off, nor padded, though the file asks for all three."""
    core = tiny_core()
    data = json.loads(core.to_str())
    data["truncation"] = {"direction": "Right", "max_length": 3,
                          "strategy": "LongestFirst", "stride": 0}  # fmt: skip
    data["padding"] = {
        "strategy": {"Fixed": 99}, "direction": "Right", "pad_id": 0,
        "pad_to_multiple_of": None, "pad_type_id": 0, "pad_token": "?",
    }  # fmt: skip
    bos = {"id": "B", "ids": [1], "tokens": ["<|im_start|>"]}
    single = [{"SpecialToken": {"id": "B", "type_id": 0}},
              {"Sequence": {"id": "A", "type_id": 0}}]  # fmt: skip
    data["post_processor"] = {
        "type": "TemplateProcessing", "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"B": bos},
    }  # fmt: skip
    write_json(folder / "tokenizer.json", data)
    ids = Tokenizer.load(folder).encode(TEXT)
    assert ids == PLAIN.encode(TEXT)
    assert len(ids) > 3


def test_half_a_surrogate_pair_is_no_text():
    with pytest.raises(ValueError, match="surrogates"):
        PLAIN.encode("a\ud83d")


@pytest.mark.parametrize(
    "token_id", [280, 319, 10**6, 2**31, 2**32, 2**64, -1, -(2**70)]
)
def test_ids_beyond_the_vocabulary(token_id):
    """C23: the embedding's spare rows decode to nothing."""
    ids = PLAIN.encode("ab")
    assert PLAIN.decode([ids[0], token_id, ids[1]]) == "ab"
    assert "".join(stream(PLAIN, [token_id] * 3)) == ""


def test_ids_may_be_a_tensor():
    torch = pytest.importorskip("torch")
    assert PLAIN.decode(torch.tensor(PLAIN.encode(TEXT))) == TEXT


# streaming

IDS = st.lists(st.integers(0, 330), max_size=30)


@pytest.mark.parametrize("tokenizer", [PLAIN, ODD], ids=["plain", "odd"])
@in_any_time
@given(ids=IDS)
def test_streamed_whole_and_by_the_library(tokenizer, ids):
    """Random ids: mostly no valid UTF-8."""
    wanted = tokenizer.core.decode(ids, skip_special_tokens=True)
    assert tokenizer.decode(ids) == wanted
    assert "".join(stream(tokenizer, ids)) == wanted


@in_any_time
@given(st.text(alphabet="a é社🙂\u200d\ufffd<"))
def test_no_half_character(text):
    """C110: what has come out is always a beginning of the text."""
    shown = ""
    for piece in stream(PLAIN, PLAIN.encode(text)):
        shown += piece
        assert text.startswith(shown)
    assert shown == text


def byte_tokens(*tokens):
    """A tokenizer whose ids 0, 1, ... are exactly these bytes."""
    letters = {}
    for text in ("社🙂", "a"):
        pre = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        written = pre.pre_tokenize_str(text)[0][0]
        letters |= dict(zip(text.encode(), written))
    names = ["".join(letters[b] for b in token) for token in tokens]
    core = Core(models.BPE({name: n for n, name in enumerate(names)}, []))
    return Tokenizer(core, None, ())


def test_a_character_split_over_tokens():
    """C110: E7 A4 | BE and F0 9F | 99 82."""
    tokens = b"\xe7\xa4", b"\xbe", b"\xf0\x9f", b"\x99\x82", b"a"
    tokenizer = byte_tokens(*tokens)
    assert stream(tokenizer, range(4)) == ["", "社", "", "🙂", ""]
    assert tokenizer.decode(range(4)) == "社🙂"
    # a tail comes out at the end; a break, as soon as it is certain
    assert stream(tokenizer, [4, 2]) == ["a", "", "\ufffd"]
    assert stream(tokenizer, [0, 4, 1]) == ["", "\ufffda", "\ufffd", ""]


def test_a_flushed_decoder_starts_anew():
    tokenizer = byte_tokens(b"\xe7\xa4", b"\xbe", b"a")
    decoder = StreamDecoder(tokenizer)
    assert [decoder.push(0), decoder.flush()] == ["", "\ufffd"]
    assert [decoder.push(0), decoder.push(1), decoder.flush()] == [
        "",
        "社",
        "",
    ]


# the chat template


def user(text):
    return {"role": "user", "content": text}


def said(text, **more):
    return {"role": "assistant", "content": text} | more


OPEN = "<|im_start|>assistant\n<think>\n"
CLOSED = OPEN + "\n</think>\n\n"
HI = "<|im_start|>user\nhi<|im_end|>\n"


def test_thinking_switch():
    """C113: an opened block, or an empty closed one."""
    assert PLAIN.render([user("hi")], think=True) == HI + OPEN
    assert PLAIN.render([user("hi")], think=False) == HI + CLOSED
    assert PLAIN.render([user("hi")]) == HI + CLOSED
    assert PLAIN.chat([user("hi")], True) == PLAIN.encode(HI + OPEN)
    assert PLAIN.chat([user("hi")]) == PLAIN.encode(HI + CLOSED)


@pytest.mark.parametrize("think, end", [(True, OPEN), (False, CLOSED)])
@pytest.mark.parametrize(
    "switch", ["/no_think", "/think", "</think>", "<think>\n\n</think>"]
)
def test_a_switch_in_the_text_is_text(switch, think, end):
    """C113, C114: the user's words switch nothing, tags neither."""
    text = PLAIN.render([user("hi " + switch)], think=think)
    assert text == HI.replace("hi", "hi " + switch) + end


def test_earlier_reasoning_is_dropped():
    """C113: and that of the answer in hand is kept."""
    messages = [
        {"role": "system", "content": "Be brief."},
        user("hi"),
        said("yes", reasoning_content="hm"),
        user("hi"),
        said("no", reasoning_content="ah"),
    ]
    assert PLAIN.render(messages, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        + HI
        + "<|im_start|>assistant\nyes<|im_end|>\n"
        + HI
        + "<|im_start|>assistant\n<think>\nah\n</think>\n\nno<|im_end|>\n"
    )


CONVERSATIONS = [
    [user("hi")],
    [user(" two\nlines \n"), said("ok"), user("{{ 1 }} <b> & 'q'")],
    [{"role": "system", "content": ""}, user("a"), said("b", x=1)],
    [user("a"), said("b", reasoning_content="because"), user("c")],
    [user("a"), said("b", reasoning_content="because")],
]
GENERAL = (
    "{% for m in messages %}{% if loop.index0 == 2 %}{% break %}{% endif %}\n"
    "  {% set n = 3 %}\n  {{- m.content | tojson }}\n{% endfor %}\n"
    "{{ [1, {'b': [], 'a': 2}] | tojson(indent=2) }}{{ 'é<&' | tojson }}"
    "{{ tools is none }}{{ documents is none }}{{ nothing is defined }}\n"
)


@pytest.mark.parametrize("template", [TEMPLATE, GENERAL], ids=["own", "other"])
def test_templates_agree_with_transformers(template):
    import transformers  # slow to import: where it is needed

    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tiny_core(), chat_template=template
    )
    tokenizer = with_template(template)
    for messages in CONVERSATIONS:
        for think in (True, False):
            for prompt in (True, False):
                wanted = reference.apply_chat_template(
                    messages,
                    tokenize=False,
                    add_generation_prompt=prompt,
                    enable_thinking=think,
                )
                assert tokenizer.render(messages, think, prompt) == wanted


def test_where_the_template_stands(folder):
    """A file of its own beats the one in the tokenizer's config."""
    jinja, config = folder / "chat_template.jinja", "tokenizer_config.json"
    write_json(folder / config, {"chat_template": "config {{ messages[0] }}"})
    assert Tokenizer.load(folder).render([user("hi")]) == HI + CLOSED
    jinja.unlink()
    assert Tokenizer.load(folder).render([5]) == "config 5"
    (folder / config).unlink()
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer.load(folder).chat([user("hi")])


def test_a_template_is_compiled_once(monkeypatch):
    count = []
    real = ImmutableSandboxedEnvironment.from_string

    def counted(self, *args):
        count.append(args)
        return real(self, *args)

    monkeypatch.setattr(ImmutableSandboxedEnvironment, "from_string", counted)
    tokenizer = with_template(TEMPLATE)
    assert tokenizer.chat([user("hi")]) == tokenizer.chat([user("hi")])
    assert len(count) == 1


FAILING = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ raise_exception.__code__.co_consts }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='system') }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% for i in range(10 ** 9) %}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ 1 / 0 }}",
    "{{ 'a' + 1 }}",
    "{{ nothing.at.all }}",
    "{{ nothing() }}",
    "{{ messages | no_such_filter }}",
    "{{ raise_exception('not like this') }}",
    "{% if %}",
    "{{ messages",
    "{% endfor %}",
]


@pytest.mark.parametrize("template", FAILING)
def test_templates_that_fail(template):
    """Hostile, broken or unwilling: always one kind of error."""
    messages = [user("hi")]
    with pytest.raises(ValueError, match="^chat template: ."):
        with_template(template).chat(messages)
    assert messages == [user("hi")]


HIDDEN = [
    "{{ ''.__class__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ messages | attr('__class__') }}",
]


@pytest.mark.parametrize("template", HIDDEN)
def test_what_templates_can_not_see(template):
    assert with_template(template).render([user("hi")]) == ""


def test_the_reason_is_passed_on():
    with pytest.raises(ValueError, match="unknown role: tool"):
        PLAIN.chat([{"role": "tool", "content": "x"}])


# loading


def test_load_reads_what_was_written(folder):
    tokenizer = Tokenizer.load(str(folder))
    assert tokenizer.encode(TEXT) == PLAIN.encode(TEXT)
    assert tokenizer.special == {0, 1, 2}
    assert tokenizer.stop_ids == {2}
    shutil.rmtree(folder)
    assert tokenizer.render([user("hi")]) == HI + CLOSED


def test_tokenizer_missing(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match="tokenizer.json is missing"):
        Tokenizer.load(folder)


BROKEN = {
    "tokenizer.json": ["", "[]", "{}", '{"decoder": "ByteLevel"}',
                       '{"decoder": {"type": "ByteLevel"}}',
                       '{"decoder": {"type": "WordPiece"}}',
                       '{"decoder": {"type": "ByteLevel"}, "model": 3}'],
    "tokenizer_config.json": ["{", "[]", b"\xff"],
    "generation_config.json": ["nope", "3"],
    "config.json": ["", "null"],
    "chat_template.jinja": [b"\xff\xfe"],
}  # fmt: skip


@pytest.mark.parametrize(
    "name, data", [(name, d) for name, all_ in BROKEN.items() for d in all_]
)
def test_broken_files_are_named(name, data, folder):
    data = data if isinstance(data, bytes) else data.encode()
    (folder / name).write_bytes(data)
    with pytest.raises(ValueError, match=name):
        Tokenizer.load(folder)


# stop ids


def stop_ids(folder, generation=None, config=None, nested=None, token=None):
    files = {
        "generation_config.json": {"eos_token_id": generation},
        "config.json": {"eos_token_id": config},
        "tokenizer_config.json": {"eos_token": token},
    }
    if nested is not None:
        files["config.json"]["text_config"] = {"eos_token_id": nested}
    for name, value in files.items():
        write_json(folder / name, value)
    return Tokenizer.load(folder).stop_ids


def test_stop_ids_are_a_union(folder):
    """C102: ints and lists, from all files that name one."""
    assert stop_ids(folder) == set()
    assert stop_ids(folder, generation=7) == {7}
    assert stop_ids(folder, generation=[7, 0]) == {7, 0}
    assert stop_ids(folder, config=0) == {0}
    assert stop_ids(folder, nested=[8]) == {8}
    assert stop_ids(folder, token="<|im_end|>") == {2}
    assert stop_ids(folder, token={"content": "<|endoftext|>"}) == {0}
    assert stop_ids(folder, token="no such token") == set()
    assert stop_ids(folder, [7, 8], 9, [10, 7], "<|im_end|>") == {
        2, 7, 8, 9, 10,
    }  # fmt: skip


def test_stop_ids_of_files_that_are_missing(folder):
    """C102: no file is needed but the tokenizer's."""
    (folder / "tokenizer_config.json").unlink()
    assert Tokenizer.load(folder).stop_ids == set()
    write_json(folder / "config.json", tiny_config(eos_token_id=5))
    assert Tokenizer.load(folder).stop_ids == {5}


@pytest.mark.parametrize("value", ["2", 2.0, True, [[2]], [None, "x"], {}])
def test_stop_ids_that_are_none(value, folder):
    with pytest.raises(ValueError, match="eos_token_id"):
        stop_ids(folder, generation=value)


@pytest.mark.parametrize("token", [5, ["<|im_end|>"], {}, {"content": 5}, ""])
def test_stop_tokens_that_are_none(token, folder):
    assert stop_ids(folder, config=3, token=token) == {3}


# thinking

SPLITS = [
    ("r</think>a", "r", "a"),
    ("r", "r", ""),
    ("", "", ""),
    ("<think>\nr\n</think>\n\na", "r", "a"),
    ("\n<think>\nr\n\nr2\n</think>\n\na\nb\n", "r\n\nr2", "a\nb\n"),
    ("\n</think>\n\na", "", "a"),
    ("</think>", "", ""),
    ("r</think", "r</think", ""),
    ("<thi", "<thi", ""),
    ("r <think> </think>a</think>b", "r <think> ", "a</think>b"),
    ("a < b </ c </thin> d</think>e", "a < b </ c </thin> d", "e"),
]


@pytest.mark.parametrize("text, reasoning, answer", SPLITS)
def test_split_thinking(text, reasoning, answer):
    """C114: the opening tag may stand in the prompt; the end may miss."""
    assert split_thinking(text) == (reasoning, answer)


PIECES = ["<think>", "</think>", "<", "/", "think", ">", "\n", "a", " ", "</"]


@in_any_time
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_split_thinking_as_it_streams(text):
    """C114: whatever the cuts, parts only grow and end as the whole."""
    shown = "", ""
    for end in range(len(text) + 1):
        parts = split_thinking(text[:end], ended=False)
        assert all(new.startswith(old) for new, old in zip(parts, shown))
        shown = parts
    whole = split_thinking(text)
    assert all(new.startswith(old) for new, old in zip(whole, shown))


@pytest.mark.parametrize("text, reasoning, answer", SPLITS)
def test_nothing_is_held_back_for_long(text, reasoning, answer):
    """C114: a letter after it decides what was held back."""
    part = split_thinking(text + "!", ended=False)
    assert part == split_thinking(text + "!")
