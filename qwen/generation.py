"""From logits to text: choosing tokens, one after another.

Source: temperature, top-k and top-p (Holtzman et al. 2019,
arXiv:1904.09751), min-p (Nguyen et al. 2024, arXiv:2407.01082), the
repetition penalty of CTRL (Keskar et al. 2019, arXiv:1909.05858).
"""

from numbers import Integral, Real
from operator import index
from sys import float_info

import torch

from qwen.cache import State


def penalise(logits, seen, penalty):
    """Make the ids in `seen` less likely: logits [V] -> [V].

    Positive logits are divided by `penalty`, negative ones multiplied.
    """
    logits = logits.clone()
    picked = logits[seen]
    logits[seen] = torch.where(picked > 0, picked / penalty, picked * penalty)
    return logits


def probabilities(logits, temperature, top_k=0, top_p=1.0, min_p=0.0):
    """logits [V] -> the distribution [V] to draw from, float64.

    At temperature 0 all of it is on the first of the largest logits.
    Then the filters, in this order: the `top_k` likeliest (0: all), the
    fewest likeliest whose sum reaches `top_p`, those at least `min_p`
    times as likely as the likeliest. One always remains.
    """
    logits = logits.double()
    if temperature == 0:
        p = torch.zeros_like(logits)
        p[logits.argmax()] = 1
        return p
    # the maximum goes first: a tiny temperature must not give inf - inf
    p = ((logits - logits.max()) / temperature).softmax(-1)
    p, order = p.sort(descending=True, stable=True)
    if top_k:
        p[top_k:] = 0
    if top_p < 1:
        before = (p / p.sum()).cumsum(0)[:-1]
        # fp32 as the reader counts: .5 + .3 reaches .8
        p[1:][before.float() >= p.new_tensor(top_p).float()] = 0
    p[p < min_p * p[0]] = 0
    return torch.zeros_like(p).scatter(0, order, p / p.sum())


def sample(logits, random, temperature, top_k=0, top_p=1.0, min_p=0.0):
    """logits [V] -> one id drawn with the torch.Generator `random`.

    Raises ValueError if the largest logit is infinite or no number.
    """
    if not logits.max().isfinite():
        raise ValueError(f"the largest logit is {logits.max().item()}")
    if temperature == 0:
        return int(logits.argmax())
    p = probabilities(logits, temperature, top_k, top_p, min_p)
    return int(torch.multinomial(p, 1, generator=random))


def generate(
    model,
    ids,
    max_new_tokens=256,
    stop_ids=(),
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    seed=None,
    state=None,
):
    """Yield new ids (ints) one by one, a stop id included as the last.

    `ids`: a list, or a tensor [T] or [1, T]. The prompt enters the model
    once, then one token a step; the last one yielded has not entered.
    `state` continues an earlier State and is moved on. Raises ValueError
    for an empty prompt, an id outside the vocabulary, or a setting out
    of range. Whatever stops it, even Ctrl-C, `state` holds the prompt and
    all tokens yielded but the last (before the first: what it held).
    """
    ids = torch.as_tensor(ids, device=model.embed_tokens.weight.device)
    ids = ids.clone()  # read now: the caller may fill its tensor anew
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.dim() != 2 or len(ids) != 1 or ids.shape[1] == 0:
        raise ValueError(f"a prompt is one row of ids, not {tuple(ids.shape)}")
    for name, value, good in (
        ("max_new_tokens", max_new_tokens, _is_count(max_new_tokens)),
        ("temperature", temperature, _within(temperature, 0, float_info.max)),
        ("top_k", top_k, _is_count(top_k)),
        ("top_p", top_p, _within(top_p, 0, 1)),
        ("min_p", min_p, _within(min_p, 0, 1)),
        ("repetition_penalty", repetition_penalty,
         _within(repetition_penalty, float_info.min, float_info.max)),
        ("seed", seed, seed is None or _is_count(seed) and seed < 2**64),
    ):  # fmt: skip
        if not good:
            raise ValueError(f"{name} is {value}, which is out of range")
    state = State(model) if state is None else state
    model.check_ids(ids, state)
    stop_ids = {index(token) for token in stop_ids}
    random = torch.Generator()
    random.seed() if seed is None else random.manual_seed(int(seed))
    settings = random, temperature, top_k, top_p, min_p
    return _steps(
        model, ids, state, max_new_tokens, stop_ids, repetition_penalty,
        settings,
    )  # fmt: skip


def _is_count(value):
    return isinstance(value, Integral) and value >= 0


def _within(value, low, high):
    return isinstance(value, Real) and low <= value <= high


def _steps(model, ids, state, budget, stop_ids, penalty, settings):
    seen = ids[0].tolist()
    if budget == 0:
        model(ids, state=state, logits_to_keep=1)
    for _ in range(budget):
        # no token chosen: none entered either
        with state.unchanged_on_failure():
            logits = model(ids, state=state, logits_to_keep=1)
            row = logits[0, -1].float().cpu()
            if penalty != 1:
                row = penalise(row, seen, penalty)
            token = sample(row, *settings)
        held = state.pos
        yield token
        if token in stop_ids:
            return
        if state.pos != held:
            raise ValueError("the state has moved on since the last token")
        seen.append(token)
        ids = ids.new_tensor([[token]])
