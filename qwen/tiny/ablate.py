"""What each part of the mixture is worth: the same training, four times.

    python -m qwen.tiny.ablate [--steps 360] [--out FOLDER]

The small model as it is; with all layers linear; with all layers full;
and with a linear rule that writes without subtracting what the table
says already. Prints a table and one machine-readable last line.
"""

import argparse
import json
from pathlib import Path

import torch

from qwen.chunk import decay_matrix
from qwen.deltanet import prepare
from qwen.tiny.evaluate import ask, percent, print_shares, shares
from qwen.tiny.train import CONFIG, FULL, LINEAR, train


def additive_rule(q, k, v, g, beta, S=None):
    """`delta_rule` without the subtraction: each token adds beta k v^T.

    Takes and returns what `delta_rule` does, in one piece of T x T.
    """
    dtype = v.dtype
    *rows, S = prepare(q, k, v, g, beta, S)
    q, k, v, g, beta = (x.transpose(1, 2) for x in rows)
    kept = g.cumsum(-1).exp()[..., None]
    D, writes = decay_matrix(g), beta[..., None] * v
    out = (q @ k.mT * D) @ writes + kept * q @ S
    if g.shape[-1]:
        k_out = D[..., -1, :, None] * k
        S = kept[..., -1:, :] * S + k_out.mT @ writes
    return out.transpose(1, 2).to(dtype), S


VARIANTS = {
    "hybrid": (CONFIG["layer_types"], None),
    "all linear": ([LINEAR] * 8, None),
    "all full": ([FULL] * 8, None),
    "no subtraction": (CONFIG["layer_types"], additive_rule),
}


def main():
    parser = argparse.ArgumentParser(prog="python -m qwen.tiny.ablate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=360)
    parser.add_argument("--stories", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("ablation"))
    options = parser.parse_args()
    torch.set_num_threads(2)
    line = {"steps": options.steps, "seed": options.seed}
    for name, (layer_types, rule) in VARIANTS.items():
        model, tokenizer = train(
            options.seed,
            options.steps,
            options.out / name.replace(" ", "-"),
            CONFIG | {"layer_types": layer_types},
            rule,
        )
        results = ask(model, tokenizer, 12345, options.stories)
        print_shares(f"{name}: facts", shares(results, 1))
        right = sum(ok for *_, ok in results)
        line[name] = round(percent(right, len(results)), 2)
    print(json.dumps(line))


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"qwen.tiny.ablate: {error}") from None
