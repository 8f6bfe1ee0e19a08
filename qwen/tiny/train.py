"""Train the small model from nothing.

    python -m qwen.tiny.train [--seed 0] [--steps 6500] [--out FOLDER]

Writes a checkpoint folder that this package and transformers load. A run
that was stopped goes on from its last state in `OUT/runs`, of each 200 steps.
"""

import argparse
import json
import os
import platform
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from tqdm import tqdm

from qwen.chunk import chunked_delta_rule
from qwen.tiny.course import RATE, lesson_at, rate_at
from qwen.tiny.data import draw_rows, to_batch, train_tokenizer
from qwen.tiny.evaluate import ask, shares
from qwen.tiny.fresh import CONFIG, copy_neighbours, new_model, spell_alike
from qwen.tokenizer import Tokenizer
from qwen.weights import BUNDLED

TOKENS = 1280  # the embedding has spare rows, as the large models' has
BATCH, BLOCK = 32, 8  # rows a step; steps whose rows are sorted together
DECAY = 0.1
# stories are short: small chunks waste less on the padding of the last
RULE = partial(chunked_delta_rule, chunk_size=16)


def new_optimizer(model):
    """AdamW; matrices decay, but not the gains, gates and convolutions.

    Nor does the embedding: words that stand in the same contexts would
    lose what tells them apart before the model has a use for it.
    """
    table = model.embed_tokens.weight
    matrices, others = [], []
    for p in model.parameters():
        (matrices if p.dim() == 2 and p is not table else others).append(p)
    groups = [
        {"params": matrices, "weight_decay": DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98))


def loss_and_gradients(model, ids, weights):
    """The weighted sum of the tokens' losses, and its gradients."""
    logits = model(ids[:, :-1])
    losses = F.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    loss = losses @ weights[:, 1:].flatten()
    return loss.item(), torch.autograd.grad(loss, tuple(model.parameters()))


def learn(model, ids, weights, pool):
    """The mean loss of a batch; its gradients go to `.grad`.

    Two threads of `pool` take every other row each: twice as fast as one,
    and the same sums in the same order, whichever is done first.
    """
    weights = weights / weights[:, 1:].sum()
    (loss, gradients), (other, others) = pool.map(
        partial(loss_and_gradients, model),
        (ids[::2], ids[1::2]),
        (weights[::2], weights[1::2]),
    )
    for p, mine, its in zip(
        model.parameters(), gradients, others, strict=True
    ):
        p.grad = mine + its
    return loss + other


def batches(tokenizer, seed, first, stop, steps):
    """(step, ids, weights) from step `first` to `stop`, of `steps` in all."""
    block = None
    for step in range(first, stop):
        if step // BLOCK != block:
            block = step // BLOCK
            lesson = lesson_at(block * BLOCK, steps)
            rows = draw_rows(tokenizer, seed, block, lesson, BATCH * BLOCK)
            # rows of one length together; the lengths in mixed order
            mix = torch.Generator().manual_seed(block)
            order = torch.randperm(BLOCK, generator=mix).tolist()
        n = order[step % BLOCK] * BATCH
        yield step, *to_batch(rows[n : n + BATCH])


def report(model, tokenizer, seed):
    """Accuracy on unseen stories, over all and by kind, in one line."""
    results = ask(model, tokenizer, f"training {seed}", 120)
    total = sum(right for *_, right in results) / len(results)
    kinds = (
        f"{kind} {100 * right / asked:.0f}"
        for kind, (right, asked) in shares(results, 0).items()
    )
    return f"{100 * total:.1f} %: {' '.join(kinds)}"


def save(model, config, tokenizer_folder, out):
    """A checkpoint folder that transformers loads unchanged."""
    tensors = {
        f"model.{name}": tensor.detach().clone()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # tied
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    write_json(out / "config.json", config)
    write_json(out / "generation_config.json", {"eos_token_id": [2, 0]})
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    write_json(out / "tokenizer_config.json", tokenizer_config)
    shutil.copy(tokenizer_folder / "tokenizer.json", out)
    if out != BUNDLED:
        shutil.copy(BUNDLED / "chat_template.jinja", out)


def write_json(file, content):
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def train(
    seed,
    steps,
    out,
    config=CONFIG,
    rule=RULE,
    mimetic=True,
    every=200,
    stop=None,
):
    """Train and write to the folder `out`; return (model, tokenizer).

    `rule` is the delta rule of the linear layers; `mimetic` weights begin
    as a search (see new_model). With `stop` it ends after so many of the
    steps. Each `every` steps the training state is kept in `out/runs`, and
    the next call goes on from there.
    """
    stop = steps if stop is None else stop
    if not 1 <= stop <= steps:
        raise ValueError(f"can't train {stop} of {steps} step(s)")
    run = out / "runs"
    run.mkdir(parents=True, exist_ok=True)
    if not (run / "tokenizer.json").exists():
        train_tokenizer(run, TOKENS)
    shutil.copy(BUNDLED / "chat_template.jinja", run)
    write_json(run / "config.json", config)
    tokenizer = Tokenizer.load(run)
    model = new_model(seed, config, mimetic)
    if mimetic:
        spell_alike(model.embed_tokens.weight, tokenizer)
        copy_neighbours(model)
    for layer in model.layers:
        if not layer.full:
            layer.linear_attn.rule = rule
    optimizer = new_optimizer(model)
    kept = run / f"seed{seed}-steps{steps}.pt"
    first, before = 0, 0.0
    if kept.exists():
        old = torch.load(kept, weights_only=True)
        model.load_state_dict(old["model"])
        optimizer.load_state_dict(old["optimizer"])
        first, before = old["step"], old["seconds"]
    bar = tqdm(total=stop, initial=first)
    tokens, started = 0, time.time()
    pool = ThreadPoolExecutor(2)
    for step, ids, weights in batches(tokenizer, seed, first, stop, steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, steps)
        loss = learn(model, ids, weights, pool)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += ids.numel()
        seconds = time.time() - started
        speed = tokens / seconds
        bar.set_postfix_str(f"loss {loss:.3f}, {speed:.0f} tokens/s")
        bar.update()
        if (step + 1) % every == 0 or step + 1 == stop:
            line = report(model, tokenizer, seed)
            bar.write(f"step {step + 1}: {line}")
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step + 1,
                "seconds": before + seconds,
            }
            torch.save(state, f"{kept}.new")
            os.replace(f"{kept}.new", kept)
    bar.close()
    pool.shutdown()
    save(model, config, run, out)
    facts = {
        "command": f"--seed {seed} --steps {steps}",
        "seconds": round(before + time.time() - started),
        "threads": 2,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tokenizers": tokenizers.__version__,
    }
    write_json(out / "training.json", facts)
    return model, tokenizer


def main():
    parser = argparse.ArgumentParser(prog="python -m qwen.tiny.train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6500)
    parser.add_argument("--out", type=Path, default=BUNDLED)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the count changes the rounding
    train(options.seed, options.steps, options.out)


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"qwen.tiny.train: {error}") from None
