# Run: python -m pytest tests/test_cli.py
"""`python -m qwen`: what it prints, and how it fails.

Most tests call `main` here, as each new interpreter has to import torch.
"""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_checkpoints import (
    tiny_config,
    tiny_core,
    write_checkpoint,
    write_json,
)

from qwen import __main__ as cli
from qwen.weights import load_weights

ROOT = Path(__file__).parent.parent
SPEEDS = re.compile(
    r"\[prefill \d+ tokens, \d+/s; decode \d+ tokens, \d+/s; "
    r"state \d+\.\d\d MB\]\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model"), tokenizer=True)


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A model with no stop ids."""
    config = tiny_config(eos_token_id=None)
    folder = tmp_path_factory.mktemp("endless")
    write_checkpoint(folder, config=config, tokenizer=True)
    write_json(folder / "tokenizer_config.json", {})
    return folder


class Input(io.TextIOWrapper):
    """Standard input that is a terminal if `terminal` is True."""

    def __init__(self, data=b"", terminal=False):
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.fixture
def ask(folder, monkeypatch, capsys):
    """ask(arguments...) -> (exit code, stdout, stderr) of `main`."""

    def call(*arguments, stdin=None, model=folder):
        words = ["qwen", *map(str, arguments)]
        if model:
            words += ["--model", str(model)]
        monkeypatch.setattr(sys, "argv", words)
        stdin = None if stdin == "none" else stdin or Input()
        monkeypatch.setattr(sys, "stdin", stdin)
        code, message = 0, ""
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
            if isinstance(code, str):  # Python prints it and exits with 1
                code, message = 1, code
        out, err = capsys.readouterr()
        return code, out, err + message

    return call


@pytest.fixture
def says(monkeypatch):
    """says(text or ids): what the model is made to answer."""

    def set_answer(tokens, error=None):
        def generate(model, ids, **options):
            yield from tokens
            if error:
                raise error

        monkeypatch.setattr(cli, "generate", generate)

    return set_answer


def tokens(text):
    return tiny_core().encode(text, add_special_tokens=False).ids


# good runs


def test_one_question(ask):
    code, out, err = ask("Where is the key?", "--max-new-tokens", 9)
    assert code == 0
    assert out.endswith("\n") and len(out) > 2
    assert SPEEDS.fullmatch(err)
    assert ask("Where is the key?", "--max-new-tokens", 9)[1] == out


def test_other_ways_to_ask(ask, folder, monkeypatch):
    out = ask("hé\nhi", "--max-new-tokens", 9)[1]
    piped = "  hé\nhi\n".encode()
    few = "--max-new-tokens", 9
    assert ask(*few, stdin=Input(piped))[1] == out
    assert ask("-", *few, stdin=Input(piped))[1] == out
    assert ask("-", *few, stdin=Input(piped, terminal=True))[1] == out
    monkeypatch.setenv("QWEN_MODEL", str(folder))
    assert ask("hé\nhi", *few, model=None)[1] == out


def test_bytes_that_are_no_text(ask):
    """From a pipe or as an argument, they don't stop the question."""
    assert ask("a\udcff", "--max-new-tokens", 1)[0] == 0
    assert ask("--max-new-tokens", 1, stdin=Input(b"a\xff"))[0] == 0


def test_letters_that_the_terminal_lacks(ask, says, monkeypatch):
    says(tokens("a社b"))
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert ask("hi")[0] == 0
    assert narrow.buffer.getvalue() == b"a?b\n"


def test_no_new_tokens(ask):
    code, out, err = ask("hi", "--max-new-tokens", 0)
    assert (code, out) == (0, "\n")
    assert re.fullmatch(r"\[state \d\.\d\d MB\]\n", err)


def test_seeds(ask):
    hot = "hi", "--temperature", 1, "--max-new-tokens", 12
    texts = [ask(*hot, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    one = ask(*hot, "--seed", 2, "--top-p", 0)[1]
    assert one == ask("hi", "--max-new-tokens", 12)[1]


def test_options_reach_the_generator(ask, monkeypatch):
    seen = {}
    generate = cli.generate

    def spy(model, ids, **options):
        seen.update(options, dtype=model.embed_tokens.weight.dtype, ids=ids)
        return generate(model, ids, **options)

    monkeypatch.setattr(cli, "generate", spy)
    options = "--temperature 0.7 --top-p 0.9 --seed 5 --dtype bfloat16"
    assert ask("hi", *options.split(), "--max-new-tokens", 1)[0] == 0
    del seen["state"]
    assert seen == {
        "max_new_tokens": 1,
        "stop_ids": {2},
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 5,
        "dtype": torch.bfloat16,
        "ids": tokens(
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
            "<think>\n\n</think>\n\n"
        ),
    }


def test_thinking_goes_to_stderr(ask, says):
    says(tokens("so\n</think>\n\nit is < here") + [2])
    code, out, err = ask("hi", "--think")
    assert (code, out) == (0, "it is < here\n")
    assert err.startswith("so\n[prefill")
    says(tokens("cut by the bud</thi"))
    code, out, err = ask("hi", "--think")
    assert (code, out) == (0, "\n")
    assert err.startswith("cut by the bud</thi[prefill")


def test_without_thinking_tags_are_text(ask, says):
    says(tokens("a</think>b"))
    assert ask("hi")[1] == "a</think>b\n"


def test_no_stop_token_in_the_text(ask, says, folder):
    """C102: special or not."""
    stop = tokens("a")[0]
    write_json(folder / "generation_config.json", {"eos_token_id": [stop]})
    says([*tokens("xyz"), stop])
    out = ask("hi")[1]
    (folder / "generation_config.json").unlink()
    assert out == "xyz\n"


def test_half_a_character_at_the_end(ask, says):
    says(tokens("a社")[:-1])
    assert ask("hi")[1] == "a\ufffd\n"


def test_ctrl_c_keeps_what_was_said(ask, says):
    says(tokens("half an ans"), KeyboardInterrupt())
    code, out, err = ask("hi")
    assert (code, out) == (130, "half an ans\n")
    assert SPEEDS.fullmatch(err)


# a chat


@pytest.fixture
def asked(monkeypatch):
    """All the messages that each answer was asked for with."""
    calls = []

    def answer(model, tokenizer, messages, options):
        calls.append([m["content"] for m in messages])
        if messages[-1]["content"] == "stop":
            raise KeyboardInterrupt
        return f"answer {len(calls)}"

    monkeypatch.setattr(cli, "answer", answer)
    return calls


def test_chat(ask, asked):
    lines = b"one\n\n  two \n/new\nthree\nstop\nfour\n/quit\nfive\n"
    code, out, err = ask(stdin=Input(lines, terminal=True))
    assert (code, err) == (0, "")
    assert asked == [
        ["one"],
        ["one", "answer 1", "two"],
        ["three"],
        ["three", "answer 3", "stop"],  # and is forgotten
        ["three", "answer 3", "four"],
    ]


def test_the_end_of_input_ends_a_chat(ask, asked):
    code, out, err = ask(stdin=Input(b"one\n", terminal=True))
    assert (code, err) == (0, "")
    assert asked == [["one"]]


class Terminal:
    """A program on a pseudo-terminal of its own."""

    def __init__(self, *command):
        self.ours, theirs = pty.openpty()
        self.program = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            # tests in the background of a shell, as by `make test &`, hand
            # on that Ctrl-C is ignored
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        os.close(theirs)
        self.shown = ""

    def wait_for(self, pattern, interrupt=False, seconds=60):
        """Read on until `pattern` has come; forget all up to its end.

        `interrupt`: press Ctrl-C, and again if nothing comes, as Python
        misses one between writing a prompt and reading the line.
        """
        end = time.monotonic() + seconds
        if interrupt:
            self.program.send_signal(signal.SIGINT)
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < end, f"no {pattern} in {self.shown!r}"
            if select.select([self.ours], [], [], 1)[0]:
                self.shown += os.read(self.ours, 4096).decode(errors="replace")
            elif interrupt:
                self.program.send_signal(signal.SIGINT)
        before, self.shown = self.shown[: found.end()], ""
        return before

    def write(self, text):
        os.write(self.ours, text.encode())

    def close(self):
        self.program.kill()
        self.program.wait()
        os.close(self.ours)


@pytest.mark.slow
def test_chat_on_a_terminal(endless):
    """Ctrl-C stops an answer and a line, Ctrl-D the program."""
    command = "-m", "qwen", "--model", str(endless)
    many = "--max-new-tokens", "1000000"
    terminal = Terminal(sys.executable, *command, *many)
    try:
        terminal.wait_for("/quit ends.*\n> ")
        terminal.write("hi\n")
        terminal.wait_for("hi\r\n(?s:.{40})")  # the answer streams
        terminal.wait_for(r"\[prefill .* MB\]\r\n> ", interrupt=True)
        terminal.write("/new\n")
        terminal.wait_for("/new\r\n> ")
        terminal.wait_for("\r\n> ", interrupt=True)
        terminal.write("\x04")
        assert terminal.program.wait(30) == 0
        assert "Traceback" not in terminal.shown
    finally:
        terminal.close()


@pytest.mark.slow
def test_a_reader_that_leaves(endless):
    """As with `| head -1`: no traceback, and the work ends."""
    command = "-m", "qwen", "hi", "--model", str(endless)
    program = subprocess.Popen(
        [sys.executable, *command, "--max-new-tokens", "1000000"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    program.stdout.read(1)
    program.stdout.close()
    _, err = program.communicate(timeout=60)
    assert program.returncode == 1
    assert err == b""


@pytest.mark.slow
def test_in_an_interpreter_of_its_own(folder):
    """Text on stdout, speeds on stderr."""
    command = sys.executable, "-m", "qwen", "hi", "--model", folder
    done = subprocess.run(
        [*command, "--max-new-tokens", "9"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stdout.endswith("\n") and len(done.stdout) > 2
    assert SPEEDS.fullmatch(done.stderr)


def test_closed_standard_input(ask, monkeypatch):
    """Python has None for it, as after `<&-`."""
    monkeypatch.setattr(cli, "load", None)
    fails(ask(stdin="none"), "prompt is empty")
    fails(ask("-", stdin="none"), "prompt is empty")


# bad input


def fails(answer, *words):
    """A non-zero exit, nothing on stdout, a message that has all words."""
    code, out, err = answer
    assert code not in (0, 130)
    assert out == ""
    for word in words:
        assert word in err


def copy(folder, tmp_path):
    """A folder with links to all files of another."""
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    return tmp_path


def replaced(folder, tmp_path, name, data=None):
    """The same with one file replaced, or removed."""
    copy(folder, tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    if data is not None:
        (tmp_path / name).write_bytes(data)
    return tmp_path


SETTINGS = [
    ("--max-new-tokens", "-1", "max_new_tokens"),
    ("--max-new-tokens", "many", "max-new-tokens"),
    ("--temperature", "-1", "temperature"),
    ("--temperature", "nan", "temperature"),
    ("--temperature", "inf", "temperature"),
    ("--top-p", "2", "top_p"),
    ("--top-p", "-0.1", "top_p"),
    ("--top-p", "nan", "top_p"),
    ("--seed", "x", "seed"),
    ("--dtype", "float8", "float8"),
    ("--dtype", "int8", "int8"),
    ("--device", "tpu", "tpu"),
    ("--device", "", "device"),
    ("--device", "meta", "meta"),
    ("--device", "hpu", "hpu"),
    ("--device", "vulkan", "vulkan"),
    ("--device", "cpu:7", "cpu:7"),
    ("--no-such-option", "1", "no-such-option"),
]


@pytest.mark.parametrize("option, value, word", SETTINGS)
def test_settings(option, value, word, ask):
    fails(ask("hi", f"{option}={value}"), word)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_no_gpu(device, ask):
    fails(ask("hi", "--device", device), f"device {device}")


@pytest.mark.parametrize("prompt", ["", "  \n\t"])
def test_empty_prompts(prompt, ask):
    fails(ask(prompt), "prompt is empty")
    fails(ask("-", stdin=Input(prompt.encode())), "prompt is empty")
    fails(ask(stdin=Input(prompt.encode())), "prompt is empty")


@pytest.mark.parametrize("name", ["/no/such", "./none", "none", "a/b/c"])
def test_no_such_folder(name, ask):
    fails(ask("hi", model=name), "no such model folder", name)


@pytest.mark.parametrize(
    "name", ["model.gguf", "pytorch_model.bin", "model.safetensors"]
)
def test_a_file_is_offered(name, ask, tmp_path):
    (tmp_path / name).write_bytes(b"GGUF")
    fails(ask("hi", model=tmp_path / name), name, "is a file")


@pytest.mark.parametrize("name", ["model.gguf", "pytorch_model.bin"])
def test_a_folder_of_another_format(name, ask, folder, tmp_path):
    (tmp_path / name).write_bytes(b"GGUF")
    fails(ask("hi", model=tmp_path), "config.json is missing", str(tmp_path))
    write_json(tmp_path / "config.json", tiny_config())
    fails(ask("hi", model=tmp_path), "no model.safetensors", "not read")


@pytest.mark.parametrize("data", [b"", b"1234567", b"GGUF\3\0\0\0" + bytes(9)])
def test_broken_weights(data, ask, folder, tmp_path):
    name = "model.safetensors"
    fails(ask("hi", model=replaced(folder, tmp_path, name, data)), name)


def test_truncated_weights(ask, folder, tmp_path):
    name = "model.safetensors"
    data = (folder / name).read_bytes()[:-1]
    fails(ask("hi", model=replaced(folder, tmp_path, name, data)), name)


def test_a_shard_missing(ask, tmp_path):
    write_checkpoint(tmp_path, shards=2, tokenizer=True)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    fails(ask("hi", model=tmp_path), "model-00002-of-00002.safetensors")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 10**5])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json",
    "tokenizer_config.json", "generation_config.json"])  # fmt: skip
def test_files_that_are_no_json(name, data, ask, folder, tmp_path):
    fails(ask("hi", model=replaced(folder, tmp_path, name, data)), name)


def test_an_unsupported_field(ask, folder, tmp_path):
    model = replaced(folder, tmp_path, "config.json", b"{}")
    write_json(model / "config.json", tiny_config(num_experts=8))
    fails(ask("hi", model=model), "num_experts")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_missing(name, ask, folder, tmp_path):
    fails(ask("hi", model=replaced(folder, tmp_path, name)), name, "missing")


def test_no_chat_template(ask, folder, tmp_path):
    model = replaced(folder, tmp_path, "chat_template.jinja")
    fails(ask("hi", model=model), "chat template")


def test_a_hostile_chat_template(ask, folder, tmp_path):
    data = b"{{ ''.__class__.__mro__ }}"
    model = replaced(folder, tmp_path, "chat_template.jinja", data)
    fails(ask("hi", model=model), "chat template")


def test_a_tensor_missing(ask, folder, tmp_path):
    tensors = load_weights(folder)
    del tensors["layers.2.mlp.up_proj.weight"]
    write_checkpoint(tmp_path, tensors=tensors, tokenizer=True)
    fails(ask("hi", model=tmp_path), "layers.2.mlp.up_proj.weight")


def test_a_tokenizer_of_another_model(ask, tmp_path):
    """Ids that the embedding does not have."""
    config = tiny_config(vocab_size=4)
    tensors = load_weights(write_checkpoint(tmp_path))
    tensors["embed_tokens.weight"] = torch.zeros(4, 16)
    write_checkpoint(tmp_path, config=config, tensors=tensors, tokenizer=True)
    fails(ask("hi", model=tmp_path), "outside 0..3")


@pytest.mark.slow
def test_a_hub_name_offline(tmp_path):
    """In a new interpreter, as the library reads its settings once."""
    done = subprocess.run(
        [sys.executable, "-m", "qwen", "hi", "--model", "owner/no-such-model"],
        env=os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "owner/no-such-model" in done.stderr
    assert "offline" in done.stderr
    assert "Traceback" not in done.stderr
