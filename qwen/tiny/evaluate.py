"""How well a checkpoint answers questions about stories it never saw.

    python -m qwen.tiny.evaluate --seed 12345 [--stories 500] [--facts 6]
                                 [--model PATH]

An answer counts when it is exactly the right one, token by token, and
ends where it should. Each token of the right answer is compared with
the model's greedy choice after the right tokens before it: all of them
agree exactly when greedy decoding would have written that answer.
"""

import argparse
import json
import random
from collections import defaultdict

import torch

from qwen import load
from qwen.tiny.corpus import KINDS, kinds_for, make_example

TRAINED = 260  # tokens; one in a thousand chats of the training is longer


def questions(tokenizer, example):
    """Each turn of an example -> (kind, facts, prompt ids, answer ids)."""
    messages = example.messages
    asked = range(0, len(messages), 2)
    for n, kind in zip(asked, example.turn_kinds, strict=True):
        # what an earlier answer was thought out from is not part of a chat
        prompt = tokenizer.chat(messages[: n + 1])
        answer = tokenizer.encode(messages[n + 1]["content"])
        yield kind, example.facts, prompt, answer


@torch.no_grad()
def right_answers(model, asked, stop_ids, tokens=8192):
    """[(kind, facts, prompt, answer)] -> a list of True and False.

    Rows of about equal length are run together, `tokens` at a time.
    """
    right = [None] * len(asked)
    size = [len(prompt) + len(answer) for _, _, prompt, answer in asked]
    order = sorted(range(len(asked)), key=size.__getitem__)
    device = model.embed_tokens.weight.device
    while order:
        n = max(1, min(len(order), tokens // size[order[-1]]))
        rows, order = order[-n:], order[:-n]
        ids = torch.zeros(n, size[rows[-1]], dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : size[row]] = torch.tensor(asked[row][2] + asked[row][3])
        chosen = model(ids.to(device)).argmax(-1).tolist()
        for i, row in enumerate(rows):
            _, _, prompt, answer = asked[row]
            said = chosen[i][len(prompt) - 1 : size[row]]
            right[row] = said[:-1] == answer and said[-1] in stop_ids
    return right


def ask(model, tokenizer, seed, stories, facts=None, **story):
    """Accuracy on unseen stories: a list of (kind, facts, right).

    Every question kind is the last of about equally many stories.
    """
    rng = random.Random(f"evaluate {seed}")
    asked = []
    for n in range(stories):
        count = facts or 1 + n % 6
        kinds = [kind for kind in KINDS if kind in kinds_for(count)]
        kind = kinds[n // 6 % len(kinds)]
        example = make_example(
            rng, count, split="test", kind=kind, think=False, **story
        )
        asked += questions(tokenizer, example)
    right = right_answers(model, asked, tokenizer.stop_ids)
    return [(a[0], a[1], ok) for a, ok in zip(asked, right, strict=True)]


def shares(results, column):
    """Results by kind (column 0) or facts (1): {name: (right, asked)}."""
    groups = defaultdict(list)
    for row in results:
        groups[row[column]].append(row[2])
    return {name: (sum(g), len(g)) for name, g in sorted(groups.items())}


def percent(right, asked):
    return 100 * right / asked


def print_shares(title, groups):
    print(f"{title:<16} asked  right      %")
    for name, (right, asked) in groups.items():
        share = percent(right, asked)
        print(f"{name!s:<16} {asked:5d} {right:6d} {share:6.1f}")
    print()


def by_distance(model, tokenizer, seed, stories, longest):
    """Two facts, then ever more idle sentences before the question.

    [(tokens of the prompt, right, asked)]: none, and then prompts of about a
    16th, an 8th, a 4th, half and all of `longest` tokens.
    """

    def draw(idle):
        rng = random.Random(f"distance {seed} {idle}")
        asked = []
        for _ in range(stories):
            example = make_example(
                rng, 2, split="test", kind="where", turns=1, think=False,
                distractors=idle,
            )  # fmt: skip
            asked += questions(tokenizer, example)
        tokens = sum(len(prompt) for _, _, prompt, _ in asked) / len(asked)
        return asked, tokens

    without = draw(0)[1]
    sentence = (draw(64)[1] - without) / 64
    wanted = {without} | {longest / n for n in (16, 8, 4, 2, 1)}
    rows = []
    for tokens in sorted(t for t in wanted if t >= without):
        asked, tokens = draw(round((tokens - without) / sentence))
        results = right_answers(model, asked, tokenizer.stop_ids)
        rows.append((round(tokens), sum(results), len(results)))
    return rows


def main():
    parser = argparse.ArgumentParser(prog="python -m qwen.tiny.evaluate")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--stories", type=int, default=500)
    parser.add_argument("--facts", type=int, choices=range(1, 7))
    parser.add_argument("--model", help="a checkpoint (default: this one)")
    options = parser.parse_args()
    if options.stories < 1:
        raise ValueError(f"--stories must be positive, not {options.stories}")
    model, tokenizer = load(options.model)
    results = ask(
        model, tokenizer, options.seed, options.stories, options.facts
    )
    kinds, facts = shares(results, 0), shares(results, 1)
    print_shares("question", kinds)
    print_shares("facts", facts)
    far = by_distance(
        model,
        tokenizer,
        options.seed,
        max(1, options.stories // 5),
        4 * TRAINED,
    )
    print_shares("prompt tokens", {t: (r, n) for t, r, n in far})
    total = sum(right for *_, right in results), len(results)
    print(f"all: {total[0]} of {total[1]}, {percent(*total):.1f} %")
    line = {
        "seed": options.seed,
        "all": round(percent(*total), 2),
        "asked": total[1],
        "kinds": {k: round(percent(*v), 2) for k, v in kinds.items()},
        "facts": {k: round(percent(*v), 2) for k, v in facts.items()},
        "tokens": {t: round(percent(r, n), 2) for t, r, n in far},
    }
    print(json.dumps(line))


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"qwen.tiny.evaluate: {error}") from None
