"""How qwen.bench measures: all in turns, and the peak of memory elsewhere."""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch

from qwen.bench_models import PEER, bytes_of_a_step, make

SHORT, NEW = 17, 38  # a question, and an answer of usual length


def seconds(work, *arguments):
    """(how long it took, what it returned)."""
    start = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - start, result


def bandwidth(megabytes=512):
    """Bytes a second at which this machine reads: the best of ten sums."""
    buffer = torch.ones(megabytes * 2**18)
    return buffer.nbytes / min(seconds(buffer.sum)[0] for _ in range(10))


def peak(name, folder, tokens):
    """Print the most memory, in bytes, that loading and a prompt took."""
    ids = torch.zeros(1, int(tokens), dtype=torch.int64)
    config = json.loads((Path(folder) / "config.json").read_text())
    ids.random_(config["vocab_size"])
    make(name, folder).read(ids)
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the parent's peak, too
        line = status.read_text().partition("VmHWM:")[2]
        print(int(line.split()[0]) * 1024)
    else:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(most * (1 if sys.platform == "darwin" else 1024))


def peak_elsewhere(name, folder, tokens):
    code = "import sys; from qwen.bench_times import peak; peak(*sys.argv[1:])"
    command = [sys.executable, "-W", "ignore", "-c", code, name, folder]
    run = subprocess.run(
        [*command, str(tokens)], check=True, stdout=subprocess.PIPE, text=True
    )
    return int(run.stdout.split()[-1])


def answer(runner, ids):
    """NEW tokens after SHORT, with a state."""
    state = runner.read(ids[:, :SHORT])
    for t in range(SHORT, SHORT + NEW - 1):
        state = runner.read(ids[:, t : t + 1], state)


def recompute(runner, ids, logits_to_keep):
    """Without one: all of the text for each token, here every second."""
    for t in range(0, NEW, 2):
        runner.recompute(ids[:, : SHORT + t], logits_to_keep)


def measure(names, folder, ids, options):
    """{name: {what: median seconds}}, everything in turns."""
    times, runners = {name: {} for name in names}, {}

    def took(name, what, work, *arguments):
        duration, result = seconds(work, *arguments)
        times[name].setdefault(what, []).append(duration)
        return result

    for _ in range(options.rounds):
        for name in names:
            runners.pop(name, None)  # its memory first
            runners[name] = took(name, "load", make, name, folder)
    for runner in runners.values():  # the first calls are slow
        runner.read(ids[:, :1], runner.read(ids[:, :SHORT]))
    for _ in range(options.rounds):
        for n in options.prompts:
            for name, runner in runners.items():
                prompt, key = ids[:, :n], f"prefill {n}"
                state = took(name, key, runner.read, prompt)
                for t in range(n, n + options.steps):
                    token, key = ids[:, t : t + 1], f"decode {n}"
                    took(name, key, runner.read, token, state)
        ours = [name for name in names if name != PEER]
        for name in ours:
            took(name, "answer", answer, runners[name], ids)
        for what, keep in ("last logit", 1), ("all logits", 0):
            for name in ours:
                took(name, what, recompute, runners[name], ids, keep)
    return {
        name: {what: median(all_of_it) for what, all_of_it in found.items()}
        for name, found in times.items()
    }


def in_units(times, name, config, weights, speed, options):
    """Seconds -> {label: value}, in the units of the labels."""
    found = {"load, s": times["load"]}
    for n in options.prompts:
        found[f"prefill of {n}, tokens/s"] = n / times[f"prefill {n}"]
    for n in options.prompts:
        took = times[f"decode {n}"]
        found[f"decode after {n}, tokens/s"] = 1 / took
        least = bytes_of_a_step(config, weights, name, n) / speed
        found[f"decode after {n}, share of the bandwidth"] = least / took
    if name == PEER:
        return found
    found[f"{NEW} tokens after {SHORT}, with state, s"] = times["answer"]
    for what in ("last logit", "all logits"):
        took, label = 2 * times[what], f"by recompute, {what}"
        found[f"{label} (every second pass, doubled), s"] = took
        found[f"{label} / with state"] = took / times["answer"]
    return found
