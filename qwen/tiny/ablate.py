"""What each part of the mixture is worth: the same training, five times.

    python -m qwen.tiny.ablate [--steps 330] [--out FOLDER]

The small model as it is; with all layers linear; with all layers full;
with a linear rule that writes without subtracting what the table says
already; and from queries and keys that start independent. Prints tables
and one machine-readable last line, which the card shows when it is kept as
`qwen/tiny/ablation.json`.
"""

import argparse
import json
from pathlib import Path

import torch

from qwen.chunk import decay_matrix
from qwen.deltanet import prepare
from qwen.tiny.evaluate import ask, percent, print_shares, shares
from qwen.tiny.fresh import CONFIG, FULL, LINEAR
from qwen.tiny.train import RULE, train


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
    "hybrid": (CONFIG["layer_types"], RULE, True),
    "all linear": ([LINEAR] * 8, RULE, True),
    "all full": ([FULL] * 8, RULE, True),
    "no subtraction": (CONFIG["layer_types"], additive_rule, True),
    "independent start": (CONFIG["layer_types"], RULE, False),
}


def main():
    parser = argparse.ArgumentParser(prog="python -m qwen.tiny.ablate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=330)
    parser.add_argument("--stories", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("ablation"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    line = {"steps": options.steps, "seed": options.seed, "right": {}}
    for name, (layer_types, rule, mimetic) in VARIANTS.items():
        model, tokenizer = train(
            options.seed,
            options.steps,
            options.out / name.replace(" ", "-"),
            CONFIG | {"layer_types": layer_types},
            rule,
            mimetic,
        )
        results = ask(model, tokenizer, 12345, options.stories)
        facts = shares(results, 1)
        print_shares(f"{name}: facts", facts)
        right = sum(ok for *_, ok in results)
        line["right"][name] = {
            "all": round(percent(right, len(results)), 2),
            **{k: round(percent(*v), 2) for k, v in facts.items()},
        }
    print(json.dumps(line))


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"qwen.tiny.ablate: {error}") from None
