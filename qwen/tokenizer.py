"""Text to ids and back, the chat template, and text as it streams.

Source: byte-level BPE as in GPT-2 (Radford et al. 2019), read by the
`tokenizers` library; chat templates as in Hugging Face transformers.
"""

import codecs
import json
from functools import cached_property
from operator import index
from pathlib import Path

import tokenizers
from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qwen.config import read_json


class Tokenizer:
    """The tokenizer of a checkpoint folder; build it with `load`.

    `stop_ids` is the set of ids that end an answer.
    """

    def __init__(self, core, template, stop_ids):
        self.core, self.template = core, template
        self.stop_ids = frozenset(stop_ids)
        self.special = {
            i
            for i, token in core.get_added_tokens_decoder().items()
            if token.special
        }

    @classmethod
    def load(cls, path):
        """Read the folder's tokenizer.json and what belongs to it.

        Raises FileNotFoundError or ValueError that names the file.
        """
        path = Path(path)
        file = path / "tokenizer.json"
        decoder = read_json(file).get("decoder")
        if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
            raise ValueError(f"{file}: not a byte-level tokenizer")
        try:
            core = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises no narrower kind
            raise ValueError(f"{file}: {error}") from None
        core.no_truncation()  # a file may ask for either
        core.no_padding()
        extra = _optional(path / "tokenizer_config.json")
        template = _template(path, extra)
        return cls(core, template, _stop_ids(path, core, extra))

    def encode(self, text):
        """str -> list of ids; nothing is added in front or behind."""
        text.encode()  # ValueError for half a surrogate pair
        return self.core.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        """ids -> str without special tokens.

        Ids beyond the vocabulary (an embedding has spare rows) are empty.
        """
        stream = StreamDecoder(self)
        return "".join(map(stream.push, ids)) + stream.flush()

    def chat(self, messages, think=False):
        """Messages [{"role", "content"}, ...] -> ids up to the answer.

        The template opens a thinking block for the answer, and with
        think=False closes it at once. Raises ValueError if there is no
        template or it refuses the messages.
        """
        return self.encode(self.render(messages, think))

    def render(self, messages, think=False, add_generation_prompt=True):
        """The text that `chat` encodes."""
        if not isinstance(self.template, str):
            raise ValueError("this checkpoint has no chat template")
        try:
            return self.compiled_template.render(
                messages=list(messages),  # a template reads it twice
                add_generation_prompt=add_generation_prompt,
                enable_thinking=think,
                tools=None,
                documents=None,
            )
        except Exception as error:  # a template can fail as any program can
            raise ValueError(f"chat template: {error}") from None

    @cached_property
    def compiled_template(self):
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        return environment.from_string(self.template)


def _template(path, extra):
    """The chat template: a file of its own beats the tokenizer's config."""
    file = path / "chat_template.jinja"
    if not file.exists():
        return extra.get("chat_template")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not text: {error}") from None


def _optional(file):
    return read_json(file) if file.exists() else {}


def _refuse(message):
    raise TemplateError(message)


def _tojson(value, indent=None):
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _stop_ids(path, core, extra):
    """All that generation config, config and tokenizer call an end."""
    config = _optional(path / "config.json")
    generation = _optional(path / "generation_config.json")
    found = []
    for place in (generation, config, config.get("text_config")):
        ids = place.get("eos_token_id") if isinstance(place, dict) else None
        found += ids if isinstance(ids, list) else [ids]
    token = extra.get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    found.append(core.token_to_id(token) if isinstance(token, str) else None)
    for token_id in found:
        if type(token_id) is not int and token_id is not None:
            raise ValueError(f"{path}: eos_token_id {token_id!r} is no id")
    return set(found) - {None}


def _byte_alphabet():
    """{character: byte} of byte-level BPE, which writes a byte as a letter.

    Printable bytes stand for themselves; the others, in order, for the
    characters from 256 on.
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letters = {chr(b): b for b in plain}
    return letters | {chr(256 + i): b for i, b in enumerate(others)}


BYTES = _byte_alphabet()


class StreamDecoder:
    """Ids one by one -> text, never half a character.

    A character whose bytes are split over tokens comes out with its last
    token. What is still incomplete at the end `flush` turns into U+FFFD.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id):
        """id -> the text that is complete now, often one word, or ''."""
        token_id = index(token_id)  # no fraction, no text
        known = 0 <= token_id < 2**32  # the library counts in 32 bits
        if not known or token_id in self.tokenizer.special:
            return ""
        token = self.tokenizer.core.id_to_token(token_id) or ""
        try:
            data = bytes(BYTES[letter] for letter in token)
        except KeyError:  # an added token, written as it is
            data = token.encode()
        return self.utf8.decode(data)

    def flush(self):
        return self.utf8.decode(b"", final=True)


def split_thinking(text, ended=True):
    """What a thinking model wrote -> (reasoning, answer).

    The opening tag usually stands in the prompt already, so text without
    a closing tag is all reasoning. With ended=False more text may follow:
    an end that could still turn out to be part of a tag or of the space
    around it is held back, so that both parts only ever grow.
    """
    close = "</think>"
    text = text.lstrip("\n").removeprefix("<think>")
    reasoning, found, answer = text.partition(close)
    if not found and not ended:
        for n in range(len(close) - 1, 0, -1):
            if reasoning.endswith(close[:n]):
                reasoning = reasoning[:-n]
                break
        reasoning = "" if "<think>".startswith(reasoning) else reasoning
    return reasoning.strip("\n"), answer.lstrip("\n")
