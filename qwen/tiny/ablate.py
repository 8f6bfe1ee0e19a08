"""What each part of the mixture is worth: the first tenth, five times.

    python -m qwen.tiny.ablate [--seed 0] [--steps 6500] [--drills 400]
                               [--out FOLDER]

The training of the small model up to a tenth of its steps, where it learns
what belongs to what: as it is; with all layers linear; with all layers full;
with a linear rule that writes without subtracting what the table says
already; and from a random start. Each is asked what that tenth has taught,
about facts that it never saw. Prints tables and one machine-readable last
line, which the card and chapter 0 show when it is kept as
`qwen/tiny/ablation.json`.
"""

import argparse
import json
import random
from pathlib import Path

import torch

from qwen.chunk import decay_matrix
from qwen.deltanet import prepare
from qwen.tiny.corpus import make_drill
from qwen.tiny.course import lesson_at
from qwen.tiny.data import plain_pieces
from qwen.tiny.evaluate import percent, print_shares, right_answers, shares
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


def ask_drills(model, tokenizer, seed, lesson, drills):
    """Accuracy on unseen drills as running text: [(kind, facts, right)].

    An answer counts when it is exactly right up to its full stop.
    """
    rng = random.Random(f"drills {seed}")
    (stop,) = tokenizer.encode(".")
    asked = []
    for _ in range(drills):
        example = make_drill(
            rng, lesson.types, lesson.kinds, lesson.coloured, "test"
        )
        texts = [text for text, _ in plain_pieces(example.messages)]
        for n, kind in enumerate(example.turn_kinds):
            prompt = tokenizer.encode("".join(texts[: 2 * n + 1]))
            *answer, end = tokenizer.encode(texts[2 * n + 1])
            assert end == stop
            asked.append((kind, example.facts, prompt, answer))
    right = right_answers(model, asked, {stop})
    return [(a[0], a[1], ok) for a, ok in zip(asked, right, strict=True)]


VARIANTS = {
    "hybrid": (CONFIG["layer_types"], RULE, True),
    "all linear": ([LINEAR] * 8, RULE, True),
    "all full": ([FULL] * 8, RULE, True),
    "no subtraction": (CONFIG["layer_types"], additive_rule, True),
    "random start": (CONFIG["layer_types"], RULE, False),
}


def main():
    parser = argparse.ArgumentParser(prog="python -m qwen.tiny.ablate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6500)
    parser.add_argument("--drills", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("ablation"))
    options = parser.parse_args()
    if options.drills < 1:
        raise ValueError(f"--drills must be at least 1, not {options.drills}")
    torch.set_num_threads(1)
    steps, stop = options.steps, options.steps // 10
    line = {"steps": stop, "of": steps, "seed": options.seed, "right": {}}
    for name, (layer_types, rule, mimetic) in VARIANTS.items():
        model, tokenizer = train(
            options.seed,
            steps,
            options.out / name.replace(" ", "-"),
            CONFIG | {"layer_types": layer_types},
            rule,
            mimetic,
            stop=stop,
        )
        lesson = lesson_at(stop - 1, steps)
        results = ask_drills(model, tokenizer, 12345, lesson, options.drills)
        kinds = shares(results, 0)
        print_shares(f"{name}: question", kinds)
        right = sum(ok for *_, ok in results)
        line["right"][name] = {
            "all": round(percent(right, len(results)), 2),
            **{k: round(percent(*v), 2) for k, v in kinds.items()},
        }
    print(json.dumps(line))


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"qwen.tiny.ablate: {error}") from None
