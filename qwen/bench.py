"""How fast, and in how much memory: Qwen3.5-0.8B's shape on a CPU.

python -m qwen.bench
python -m qwen.bench --vs transformers
python -m qwen.bench --dtype float32 bfloat16 packed --threads 1

The weights are random: speed does not depend on them. "packed" is bf16
weights as qwen/packed.py holds them. All that is compared runs in one
process, in turns, and the medians are printed; the peak of memory is
measured in a process for each. The last line is the same in JSON. A machine
that does something else meanwhile spoils all of it.
"""

import argparse
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import torch

from qwen.bench_models import CONFIG, KINDS, PEER, write_checkpoint
from qwen.bench_times import (
    NEW,
    SHORT,
    bandwidth,
    in_units,
    measure,
    peak_elsewhere,
)


def table(results):
    """Markdown: a row for each label; speeds also over the first column's."""
    names = list(results)
    labels = max(results.values(), key=len)
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for label in labels:
        cells = []
        for name in names:
            value, first = (results[x].get(label) for x in (name, names[0]))
            cell = "-" if value is None else f"{value:.2f}"
            if value and label.endswith("tokens/s"):
                cell += f" ({value / first:.2f}x)"
            cells.append(cell)
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def bench(config, options):
    """Measure, print the table and the line of JSON."""
    start = time.perf_counter()
    names = [PEER] if options.vs else []
    names += [kind for kind in KINDS if kind in options.dtype]
    engines = torch.backends.quantized.supported_engines
    if "packed" in names and "fbgemm" not in engines:
        print("PyTorch has no FBGEMM: bfloat16, not packed", file=sys.stderr)
        names = [name for name in names if name in (PEER, "float32")]
        names.append("bfloat16")
    with tempfile.TemporaryDirectory() as folder:
        weights = write_checkpoint(config, Path(folder))
        speed = bandwidth()
        length = max(*options.prompts, SHORT + NEW) + options.steps
        ids = torch.randint(config["vocab_size"], (1, length))
        times = measure(names, folder, ids, options)
        speed = max(speed, bandwidth())
        results = {
            name: in_units(times[name], name, config, weights, speed, options)
            for name in names
        }
        for name in names:
            most = peak_elsewhere(name, folder, max(options.prompts))
            label = f"peak memory with {max(options.prompts)} tokens, GB"
            results[name][label] = most / 1e9
    about = {
        "weights": weights,
        "threads": torch.get_num_threads(),
        "bandwidth, GB/s": speed / 1e9,
        "rounds": options.rounds,
        "decode steps": options.steps,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "minutes": (time.perf_counter() - start) / 60,
    }
    print("; ".join(f"{key} {value}" for key, value in about.items()), "\n")
    print(table(results))
    print(json.dumps(about | {"results": results}))


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m qwen.bench",
        description="Speed and memory of Qwen3.5-0.8B's shape on a CPU.",
    )
    add = parser.add_argument
    add("--vs", choices=["transformers"], help="what to compare with")
    usual = ["float32", "packed"]  # bfloat16 is slow
    add("--dtype", nargs="+", choices=KINDS, default=usual, help="these two")
    add("--threads", type=int, help="as many as PyTorch likes")
    add("--prompts", type=int, nargs="+", default=[128, 512, 2048])
    add("--steps", type=int, default=3, help="tokens after each prompt")
    add("--rounds", type=int, default=5, help="medians of so many")
    return parser.parse_args(arguments)


def main():
    options = parse()
    if options.vs and not importlib.util.find_spec("transformers"):
        sys.exit("qwen.bench: --vs transformers: it is not installed")
    if options.threads:
        torch.set_num_threads(options.threads)
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    torch.manual_seed(0)
    bench(CONFIG, options)


if __name__ == "__main__":
    main()
