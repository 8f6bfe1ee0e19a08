"""How fast, and in how much memory: Qwen3.5-0.8B's shape on a CPU.

python -m qwen.bench
python -m qwen.bench --vs transformers
python -m qwen.bench --dtype bfloat16 --threads 1

The weights are random: speed does not depend on them. All that is
compared runs in one process, in turns, and the medians are printed; the
peak of memory is measured in a process for each. The last line is the same
in JSON. A machine that does something else meanwhile spoils all of it.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import save_file

from qwen.cache import State
from qwen.config import Config
from qwen.model import Model
from qwen.packed import load_packed

# Source: text_config of config.json in Qwen/Qwen3.5-0.8B on the Hugging Face
# hub; what only names the vision tower and the MTP head is left out.
CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "dtype": "bfloat16",
    "vocab_size": 248320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
    "max_position_embeddings": 262144,
    "tie_word_embeddings": True,
}
KINDS = "float32", "bfloat16", "packed"
PEER = "transformers float32"
SIZES = {"float32": 4, "bfloat16": 2, "packed": 2, PEER: 4}  # bytes a weight
SHORT, NEW = 17, 38  # a question, and an answer of usual length


class Ours:
    def __init__(self, folder, kind):
        if kind == "packed":
            self.model = load_packed(folder)
        else:
            self.model = Model.from_pretrained(folder, getattr(torch, kind))

    def read(self, ids, state=None):
        """ids [1, T] -> the state after them."""
        state = State(self.model) if state is None else state
        self.model(ids, state=state, logits_to_keep=1)
        return state

    def recompute(self, ids, logits_to_keep):
        self.model(ids, logits_to_keep=logits_to_keep)


class Theirs:
    """transformers, with the same three methods."""

    def __init__(self, folder):
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        load = AutoModelForCausalLM.from_pretrained
        self.model = load(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def read(self, ids, state=None):
        settings = {"use_cache": True, "logits_to_keep": 1}
        out = self.model(ids, past_key_values=state, **settings)
        return out.past_key_values


def make(name, folder):
    return Theirs(folder) if name == PEER else Ours(folder, name)


def write_checkpoint(config, folder):
    """A folder as on the hub, in bf16; returns the number of weights."""
    with torch.device("meta"):
        model = Model(Config.from_dict(config))
    weights = {}
    for name, p in model.named_parameters():
        w = torch.empty(p.shape, dtype=torch.bfloat16).normal_(0, 0.02)
        if name.endswith("linear_attn.norm.weight"):
            w += 1
        weights["model." + name] = w
    if "model.lm_head.weight" in weights:
        weights["lm_head.weight"] = weights.pop("model.lm_head.weight")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return sum(w.numel() for w in weights.values())


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
    code = "import sys; from qwen.bench import peak; peak(*sys.argv[1:])"
    command = [sys.executable, "-W", "ignore", "-c", code, name, folder]
    run = subprocess.run(
        [*command, str(tokens)], check=True, stdout=subprocess.PIPE, text=True
    )
    return int(run.stdout.split()[-1])


def answer(runner, ids, how):
    """NEW tokens after SHORT; `how`: "state", or the logits to keep."""
    state = None
    for t in range(NEW):
        seen = ids[:, : SHORT + t]
        if how == "state":
            state = runner.read(seen[:, -1:] if t else seen, state)
        else:
            runner.recompute(seen, how)


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
    for name in names:
        answer(runners[name], ids, "state")  # the first calls are slow
    for _ in range(options.rounds):
        for n in options.prompts:
            for name, runner in runners.items():
                prompt, key = ids[:, :n], f"prefill {n}"
                state = took(name, key, runner.read, prompt)
                for t in range(n, n + options.steps):
                    token, key = ids[:, t : t + 1], f"decode {n}"
                    took(name, key, runner.read, token, state)
        for name, runner in runners.items():
            took(name, "answer", answer, runner, ids, "state")
        ours = next(name for name in names if name != PEER)
        for label, keep in (("last logit", 1), ("all logits", 0)):
            took(ours, label, answer, runners[ours], ids, keep)
    return {
        name: {what: median(all_of_it) for what, all_of_it in found.items()}
        for name, found in times.items()
    }


def bytes_of_a_step(config, weights, name, pos):
    """What a step must read: each weight, and the state after `pos`."""
    c = Config.from_dict(config)
    if not c.tie_word_embeddings:  # the lookup reads one row of its table
        weights -= c.vocab_size * c.hidden_size
    full = c.layer_types.count("full_attention")
    keys = c.linear_num_key_heads * c.linear_key_head_dim
    values = c.linear_num_value_heads * c.linear_value_head_dim
    window = (2 * keys + values) * (c.linear_conv_kernel_dim - 1)
    linear = values * c.linear_key_head_dim + window
    cached = 2 * pos * c.num_key_value_heads * c.head_dim
    state = full * cached + (c.num_hidden_layers - full) * linear
    return weights * SIZES[name] + state * 4


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
    found[f"{NEW} tokens after {SHORT}, s"] = times["answer"]
    for what in ("last logit", "all logits"):
        if what in times:
            found[f"the same, recomputed, {what}, s"] = times[what]
    return found


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
    names = [PEER] if options.vs else []
    names += [kind for kind in KINDS if kind in options.dtype]
    engines = torch.backends.quantized.supported_engines
    if "packed" in names and "fbgemm" not in engines:
        print("No row for packed: PyTorch has no FBGEMM", file=sys.stderr)
        names.remove("packed")
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
        "torch": torch.__version__,
        "machine": platform.machine(),
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
    add("--dtype", nargs="+", choices=KINDS, default=KINDS, help="all three")
    add("--threads", type=int, help="as many as PyTorch likes")
    add("--prompts", type=int, nargs="+", default=[128, 512, 2048])
    add("--steps", type=int, default=5, help="tokens after each prompt")
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
