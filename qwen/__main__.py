"""Ask the model from the command line.

python -m qwen "Mia put the red key in the drawer. Where is the key?"
python -m qwen                      (a chat: /new, /quit, Ctrl-C)
"""

import argparse
import os
import sys
import time

import torch

from qwen import generate, load
from qwen.cache import State
from qwen.tokenizer import StreamDecoder, split_thinking

DTYPES = ("float32", "bfloat16", "float16")


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m qwen",
        description="Ask the model; without a prompt, chat with it.",
        epilog="Without --model: $QWEN_MODEL, else the small model.",
    )
    add = parser.add_argument
    add("prompt", nargs="?", help="the question; '-' or a pipe: all of it")
    add("--model", help="a folder, or owner/name[@revision] on the hub")
    add("--max-new-tokens", type=int, default=256, help="256 if not given")
    add("--temperature", type=float, default=0.0, help="0: always the same")
    add("--top-p", type=float, default=1.0, help="0 to 1; 1 keeps all")
    add("--seed", type=int, help="the same seed, the same answer")
    add("--think", action="store_true", help="think first, on stderr")
    add("--device", help="cpu, cuda, cuda:1, ...")
    add("--dtype", choices=DTYPES, help="how weights are stored")
    return parser.parse_args(arguments)


def answer(model, tokenizer, messages, options):
    """Stream one answer; return what was said, even if Ctrl-C cut it."""
    ids = tokenizer.chat(messages, think=options.think)
    state, decoder = State(model), StreamDecoder(tokenizer)
    said, shown, times = "", ["", ""], [time.perf_counter()]
    stopped = False

    def show(ended):
        parts = "", said
        if options.think:
            parts = split_thinking(said, ended)
        for n, stream in enumerate((sys.stderr, sys.stdout)):
            if n and shown[0] and parts[1] and not shown[1]:
                print(file=sys.stderr, flush=True)  # between thought and said
            new = parts[n][len(shown[n]) :]
            shown[n] = parts[n]  # first: Ctrl-C must not show it twice
            if new:  # a full disk refuses even nothing
                print(new, end="", file=stream, flush=True)

    tokens = generate(
        model,
        ids,
        max_new_tokens=options.max_new_tokens,
        stop_ids=tokenizer.stop_ids,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        state=state,
    )
    try:
        for token in tokens:
            times.append(time.perf_counter())
            if token not in tokenizer.stop_ids:
                said += decoder.push(token)
                show(ended=False)
    except KeyboardInterrupt:
        stopped = True
    said += decoder.flush()
    show(ended=True)
    print(flush=True)
    report(len(ids), times, state)
    if stopped and options.prompt is not None:
        raise KeyboardInterrupt
    return shown[1]


def report(prompt, times, state):
    """Speeds and the size of the memory, on stderr."""
    parts = [f"state {state.megabytes():.2f} MB"]
    if len(times) > 1:
        speed = prompt / (times[1] - times[0])
        parts.insert(0, f"prefill {prompt} tokens, {speed:.0f}/s")
    if len(times) > 2:
        steps = len(times) - 2
        speed = steps / (times[-1] - times[1])
        parts.insert(1, f"decode {steps} tokens, {speed:.0f}/s")
    print("[" + "; ".join(parts) + "]", file=sys.stderr)


def chat(model, tokenizer, options):
    print("/new starts over, /quit ends, Ctrl-C stops an answer.")
    messages = []
    while True:
        try:
            line = input("> ").strip()
            if line == "/quit":
                return
            if line == "/new":
                messages = []
            elif line:
                asked = [*messages, {"role": "user", "content": line}]
                said = answer(model, tokenizer, asked, options)
                messages = [*asked, {"role": "assistant", "content": said}]
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()


def run(options):
    prompt = options.prompt
    piped = sys.stdin is None or not sys.stdin.isatty()
    if prompt == "-" or (prompt is None and piped):
        prompt = options.prompt = sys.stdin.read() if sys.stdin else ""
    if prompt is not None:
        # an argument can hold bytes that are no text
        prompt = prompt.encode(errors="replace").decode().strip()
        if not prompt:
            raise ValueError("the prompt is empty")
    dtype = getattr(torch, options.dtype) if options.dtype else None
    model, tokenizer = load(options.model, options.device, dtype)
    if prompt is None:
        chat(model, tokenizer, options)
    else:
        message = {"role": "user", "content": prompt}
        answer(model, tokenizer, [message], options)


def main():
    options = parse()
    for name in "stdout", "stderr":
        if getattr(sys, name) is None:  # closed: print would take the other
            setattr(sys, name, open(os.devnull, "w"))
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if stream:  # a letter that can't be read or shown must not end all
            stream.reconfigure(errors="replace")
    try:
        run(options)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # the reader left; the flush at the end must not complain of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        sys.exit(f"qwen: {error}")


if __name__ == "__main__":
    main()
