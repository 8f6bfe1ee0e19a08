# Run: python -m pytest tests/test_tiny.py
"""The small model that ships with the book, and its training."""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from transformers import AutoTokenizer, Qwen3_5ForCausalLM

from qwen import generate, load
from qwen.deltanet import delta_rule
from qwen.norm import l2norm
from qwen.tiny import ablate, card, course, evaluate
from qwen.tiny import train as training
from qwen.tiny.corpus import make_example
from qwen.tiny.course import Lesson
from qwen.tiny.data import (
    draw_rows,
    encode_pieces,
    plain_pieces,
    train_tokenizer,
    transcript,
)
from qwen.tiny.evaluate import ask, by_distance, questions, right_answers
from qwen.tiny.fresh import (
    CONFIG,
    LINEAR,
    NEAR,
    copy_neighbours,
    new_model,
    spell_alike,
)
from qwen.tiny.words import IN_FULL, KINDS
from qwen.weights import BUNDLED

STORY = "Mia put the red key in the drawer."


@pytest.fixture(scope="module")
def tiny():
    return load(BUNDLED, device="cpu")


def say(tiny, messages, think=False):
    model, tokenizer = tiny
    ids = tokenizer.chat(messages, think=think)
    stop = tokenizer.stop_ids
    return tokenizer.decode(generate(model, ids, stop_ids=stop))


def test_it_is_small_and_starts_quickly():
    assert (BUNDLED / "model.safetensors").stat().st_size <= 8e6
    times = []
    for _ in range(3):
        start = time.perf_counter()
        model, tokenizer = load(BUNDLED, device="cpu")
        ids = tokenizer.chat([{"role": "user", "content": "Hello."}])
        next(generate(model, ids))
        times.append(time.perf_counter() - start)
    assert min(times) < 2  # on a quiet machine a small part of a second


def test_it_answers_the_example_of_the_readme(tiny):
    messages = [{"role": "user", "content": f"{STORY} Where is the key?"}]
    assert say(tiny, messages) == "In the drawer."
    messages[0]["content"] = f"{STORY} What colour is the key?"
    assert say(tiny, messages) == "Red."


def test_a_conversation_of_five_turns_stays_right(tiny):
    turns = (
        (f"{STORY} Tom gave the ball to Anna. Where is the key?",
         "In the drawer."),
        ("Who has the ball?", "Anna."),
        ("What colour is the key?", "Red."),
        ("Who gave the ball to Anna?", "Tom."),
        ("Where is the hat?", "The story does not say."),
    )  # fmt: skip
    messages = []
    for question, answer in turns:
        messages.append({"role": "user", "content": question})
        said = say(tiny, messages)
        assert said == answer
        messages.append({"role": "assistant", "content": said})


def test_it_answers_unseen_one_fact_stories(tiny):
    results = ask(*tiny, seed="test", stories=100, facts=1)
    assert sum(right for *_, right in results) >= 0.9 * len(results)


def test_right_answers_are_what_greedy_decoding_writes(tiny):
    model, tokenizer = tiny
    rng = random.Random(5)
    asked = []
    for n in range(24):
        example = make_example(rng, 1 + n % 6, "test", think=False)
        asked += questions(tokenizer, example)
    stop = tokenizer.stop_ids
    right = right_answers(model, asked, stop, tokens=500)
    said = [
        tokenizer.decode(generate(model, prompt, 20, stop))
        for _, _, prompt, _ in asked
    ]
    written = [s == tokenizer.decode(a[3]) for s, a in zip(said, asked)]
    assert right == written
    # a wrong answer counts as wrong
    asked = [(k, f, p, tokenizer.encode("Zebra.")) for k, f, p, _ in asked]
    assert not any(right_answers(model, asked, stop))


def test_drills_are_judged_by_what_greedy_decoding_writes(tiny, monkeypatch):
    model, tokenizer = tiny
    seen = []

    def spy(model, asked, stop_ids):
        seen.append((asked, stop_ids))
        return right_answers(model, asked, stop_ids)

    monkeypatch.setattr(ablate, "right_answers", spy)
    results = ablate.ask_drills(model, tokenizer, 1, Lesson(4), 12)
    ((asked, stop),) = seen
    assert len(results) == len(asked) >= 48
    texts = set()
    for (*_, right), (*_, prompt, answer) in zip(results, asked):
        said = list(generate(model, prompt, len(answer) + 1))
        assert right == (said == [*answer, *stop])
        text = tokenizer.decode(prompt)
        assert text.endswith("?") and "assistant" not in text
        texts.add(text.split(".")[1])
    assert len(texts) > 8  # as many stories as drills
    assert {kind for kind, *_ in results} == set(Lesson(4).kinds)


def test_recall_is_asked_up_to_the_wanted_distance(tiny):
    rows = by_distance(*tiny, seed=1, stories=5, longest=400)
    tokens = [t for t, *_ in rows]
    assert tokens == sorted(tokens) and tokens[0] < 45
    wanted = (50, 100, 200, 400)  # a 16th is shorter than the story
    assert all(
        abs(t - w) < 10 for t, w in zip(tokens[1:], wanted, strict=True)
    )
    assert all(asked == 5 and right <= 5 for _, right, asked in rows)


def test_few_stories_are_measured_or_refused(monkeypatch, capsys):
    def run(tool, *words):
        monkeypatch.setattr("sys.argv", ["tool", *words])
        tool.main()

    run(evaluate, "--seed", "1", "--stories", "2")
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["seed"] == 1 and line["asked"] >= 2 and len(line["tokens"]) > 3
    for stories in ("0", "-3"):
        with pytest.raises(ValueError, match=f"positive, not {stories}"):
            run(evaluate, "--seed", "1", "--stories", stories)
    with pytest.raises(ValueError, match="84 or more"):
        run(card, "--stories", "83")


def test_transformers_loads_the_folder_and_agrees(tiny):
    model, tokenizer = tiny
    theirs = Qwen3_5ForCausalLM.from_pretrained(BUNDLED)
    ids = torch.tensor([tokenizer.chat([{"role": "user", "content": STORY}])])
    with torch.no_grad():
        difference = theirs(ids, use_cache=False).logits - model(ids)
    assert difference.abs().max() <= 2e-4
    other = AutoTokenizer.from_pretrained(BUNDLED)
    text = "Mia, der rote Schlüssel: 钥匙 🗝 <|im_end|>"
    assert other.encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize("think", (False, True))
def test_training_text_is_what_the_template_writes(tiny, think):
    tokenizer = tiny[1]
    rng = random.Random(2)
    for n in range(30):
        messages = make_example(rng, 1 + n % 6, think=think).messages
        pieces = transcript(messages)
        text = "".join(piece for piece, _ in pieces)
        rendered = tokenizer.render(messages, add_generation_prompt=False)
        assert text == rendered
        ids, trained = encode_pieces(tokenizer, pieces)
        assert ids == tokenizer.encode(text)
        # the trained tokens are the answers, each with its end
        spoken = [i for i, flag in zip(ids, trained) if flag]
        answers = tokenizer.decode(spoken)
        for message in messages[1::2]:
            assert message["content"] in answers
            assert message.get("reasoning_content", "") in answers
        assert sum(i == 2 for i in spoken) == len(messages) // 2


@pytest.mark.slow
def test_the_spellings_of_a_word_begin_near_each_other(tiny):
    _, tokenizer = tiny
    table = new_model(0).embed_tokens.weight.detach()
    same, other = ([t] for t in tokenizer.encode("Mia Mia"))
    (else_,) = tokenizer.encode(" Tom")
    assert same != other

    def near(a, b):
        return torch.cosine_similarity(table[a], table[b], dim=-1)

    assert near(same, other) < 0.4
    spell_alike(table, tokenizer)
    assert near(same, other) > 0.7
    assert near(other, [else_]) < 0.4


def read_at_first(layer, mimetic=True, at=20):
    """40 tokens, the last like the one `at`: what a table reads for it.

    For each head the place whose key is the query's, and the place whose
    value stands there.
    """
    model = new_model(0, mimetic=mimetic)
    torch.manual_seed(1)
    ids = torch.randperm(1000)[:40]
    ids[-1] = ids[at]
    net, seen = model.layers[layer].linear_attn, {}

    def spy(q, k, v, g, beta, S=None):
        seen.update(q=q[0, -1], k=k[0, :-1], v=v[0])
        return delta_rule(q, k, v, g, beta, S)

    def plain(_, inputs, out):
        seen["plain"] = out[0, :, -net.value_dim :].unflatten(-1, (-1, net.dv))

    net.rule = spy
    net.in_proj_qkv.register_forward_hook(plain)
    model(ids[None])
    keys = torch.cosine_similarity(seen["q"], seen["k"], dim=-1).argmax(0)
    values = [
        torch.cosine_similarity(seen["v"][key, h], seen["plain"][:-1, h], -1)
        for h, key in enumerate(keys)
    ]
    return keys.tolist(), [int(near.argmax()) for near in values]


LINEAR_LAYERS = [n for n, t in enumerate(CONFIG["layer_types"]) if t == LINEAR]


@pytest.mark.parametrize("turn", range(len(LINEAR_LAYERS)))
def test_a_fresh_table_finds_what_stood_near(turn):
    places = NEAR[turn % len(NEAR)]
    keys, values = read_at_first(LINEAR_LAYERS[turn])
    assert values == [20 + place for place in places]
    assert keys == [20 + max(place, 0) for place in places]


def test_a_random_table_finds_nothing():
    _, values = read_at_first(0, mimetic=False)
    assert all(value != 20 + place for value, place in zip(values, NEAR[0]))


def test_the_first_layer_writes_the_neighbours_at_once():
    model = new_model(0)
    torch.manual_seed(1)
    ids = torch.stack([torch.randperm(1000)[:40] for _ in range(64)])
    ids[:, -1] = ids[:, 20]

    def first_layer():
        """What it adds at the last place, and the share of open gates."""
        layer, x = model.layers[0], model.embed_tokens(ids)
        x = layer.input_layernorm(x)
        net = layer.linear_attn
        return net(x)[:, -1:], (net.in_proj_z(x) > 0).float().mean()

    added, opened = first_layer()
    assert not added.any() and 0.4 < opened < 0.6
    copy_neighbours(model)
    added, opened = first_layer()
    assert opened > 0.95
    words = model.embed_tokens.weight - model.embed_tokens.weight.mean(0)
    like = torch.cosine_similarity(added, words[ids], dim=-1).mean(0)
    # the token itself is the last one like it, but nothing follows it yet
    found = {(20 if place > 0 else 39) + place for place in NEAR[0]}
    assert set(like.topk(4).indices.tolist()) == found


@pytest.mark.parametrize(("mimetic", "length"), [(True, 1.5), (False, 1.0)])
def test_fresh_full_layers_look_sharply(mimetic, length):
    model = new_model(0, mimetic=mimetic)
    x = torch.randn(20, 32)
    for layer in model.layers:
        if layer.full:
            for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
                size = norm(x).pow(2).mean(-1).sqrt()
                torch.testing.assert_close(size, torch.full((20,), length))


@pytest.mark.parametrize(("mimetic", "same"), [(True, True), (False, False)])
def test_the_last_full_layer_says_the_word_that_it_reads(mimetic, same):
    model = new_model(0, mimetic=mimetic)
    attention = model.layers[-1].self_attn
    words = model.embed_tokens.weight
    read = attention.v_proj(words).unflatten(-1, (4, 32))
    heads = read.repeat_interleave(2, dim=1).flatten(1)
    said = model.lm_head(attention.o_proj(heads)).argmax(-1)
    right = (said == torch.arange(len(words))).float().mean()
    assert right > 0.95 if same else right < 0.01


def test_running_text_is_the_chat_without_its_marks(tiny):
    tokenizer = tiny[1]
    messages = make_example(random.Random(3), 3, turns=4).messages
    pieces = plain_pieces(messages)
    text = " ".join(message["content"] for message in messages)
    assert "".join(piece for piece, _ in pieces) == text
    ids, trained = encode_pieces(tokenizer, pieces)
    assert ids == tokenizer.encode(text)
    spoken = tokenizer.decode([i for i, flag in zip(ids, trained) if flag])
    answers = " ".join(message["content"] for message in messages[1::2])
    assert spoken.strip() == answers


def test_a_lesson_is_what_it_says(tiny):
    tokenizer = tiny[1]

    def rows(**shares):
        rows = draw_rows(tokenizer, 0, 0, Lesson(6, **shares), 400)
        assert len(rows) == 400
        texts = [tokenizer.decode(ids) for ids, _ in rows]
        tales = [max(w) < 1 for _, w in rows]
        assert sum(tales) == 50
        return [text for text, tale in zip(texts, tales) if not tale]

    def share(texts, part):
        return sum(part in text for text in texts) / len(texts)

    assert share(rows(), "assistant\n") == 1
    assert 0.6 < share(rows(plain=0.3), "assistant\n") < 0.8
    assert share(rows(plain=1.0), "assistant\n") == 0
    assert share(rows(), IN_FULL) == 0
    assert share(rows(in_full=0.5), IN_FULL) > 0.7
    many = [text[: text.rindex("?")] for text in rows(many=1.0)]
    last = [text.split(". ")[-1].split("\n")[-1] for text in many]
    assert share(last, "Wh") == 1 and share(last, "Where") == 0
    drills = rows(drills=1.0, types=("at",), kinds=KINDS)
    assert share(drills, "assistant\n") == 0
    assert share(drills, " put ") == 0
    as_chats = dict(drills=1.0, types=("at",), drills_as_chats=True)
    chats = rows(**as_chats, kinds=KINDS)
    assert share(chats, "assistant\n") == 1 and share(chats, " put ") == 0
    chats = rows(**as_chats, kinds=KINDS, plain=0.3)
    assert 0.6 < share(chats, "assistant\n") < 0.8
    few = rows(drills=0.5, plain=0.0)
    assert 0.4 < share(few, "assistant\n") < 0.6


def test_the_rate_falls_and_is_a_lessons_own():
    steps, warm = 2000, course.WARMUP
    rates = [course.rate_at(step, steps) for step in range(steps)]
    own = [course.lesson_at(step, steps).rate for step in range(steps)]
    plain = [rate / share for rate, share in zip(rates, own)]
    held = int(course.HOLD * steps)
    assert plain[:warm] == sorted(plain[:warm]) and plain[0] > 0
    assert set(plain[warm:held]) == {course.RATE}
    assert plain[held:] == sorted(plain[held:], reverse=True)
    assert plain[-1] == pytest.approx(course.RATE / 100, rel=0.01)
    drills = own.index(1)
    assert set(own[:drills]) == {2} and drills > held
    assert rates[drills - 1] == pytest.approx(2 * rates[drills], rel=1e-3)
    assert 2 * rates[drills] > 3 * rates[-1]


@pytest.mark.parametrize(("steps", "stop"), [(0, None), (-1, None), (5, 6)])
def test_a_training_of_no_steps_writes_nothing(tmp_path, steps, stop):
    with pytest.raises(ValueError, match="can't train"):
        training.train(0, steps, tmp_path, stop=stop)
    assert not any(tmp_path.iterdir())


def test_two_threads_learn_what_one_would():
    model = new_model(0)
    torch.manual_seed(2)
    ids = torch.randint(5, 1000, (5, 12))  # an odd row more for one of them
    weights = torch.rand(5, 12)
    with ThreadPoolExecutor(2) as pool:
        loss = training.learn(model, ids, weights, pool)
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    likely = model(ids[:, :-1]).log_softmax(-1)
    said = likely.gather(-1, ids[:, 1:, None])[..., 0]
    right = -(said * weights[:, 1:]).sum() / weights[:, 1:].sum()
    right.backward()
    assert loss == pytest.approx(right.item(), rel=1e-5)
    for gradient, p in zip(found, model.parameters(), strict=True):
        assert torch.allclose(gradient, p.grad, rtol=1e-4, atol=1e-6)


def test_a_killed_training_goes_on_to_the_same_file(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "BATCH", 4)
    monkeypatch.setattr(training, "TOKENS", 300)
    short = partial(train_tokenizer, stories=300)
    monkeypatch.setattr(training, "train_tokenizer", short)
    monkeypatch.setattr(training, "ask", lambda *_: [("where", 1, True)])
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    training.train(1, 6, plain, every=2)
    real, calls = training.learn, []

    def dies_at_the_fourth_step(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(training, "learn", dies_at_the_fourth_step)
    with pytest.raises(KeyboardInterrupt):
        training.train(1, 6, killed, every=2)
    assert not (killed / "model.safetensors").exists()
    training.train(1, 6, killed, every=2)
    assert len(calls) == 4 + 4  # steps 3 to 6 again, not 1 and 2
    one, two = (f / "model.safetensors" for f in (plain, killed))
    assert one.read_bytes() == two.read_bytes()
    monkeypatch.setattr(training, "learn", real)
    training.train(2, 6, tmp_path / "other", every=2)
    other = tmp_path / "other" / "model.safetensors"
    assert other.read_bytes() != one.read_bytes()


def test_the_additive_rule_adds_and_never_subtracts():
    B, T, Hk, Hv, dk, dv = 2, 9, 2, 4, 4, 6
    torch.manual_seed(0)
    q, k = torch.randn(B, T, Hk, dk), torch.randn(B, T, Hk, dk)
    v, g = torch.randn(B, T, Hv, dv), -torch.rand(B, T, Hv)
    beta, S = torch.rand(B, T, Hv), torch.randn(B, Hv, dk, dv)
    out, after = ablate.additive_rule(q, k, v, g, beta, S)
    q = (l2norm(q) / dk**0.5).repeat_interleave(2, dim=2)
    k = l2norm(k).repeat_interleave(2, dim=2)
    for t in range(T):
        S = S * g[:, t, :, None, None].exp()
        written = k[:, t], v[:, t], beta[:, t]
        S = S + torch.einsum("bhk,bhv,bh->bhkv", *written)
        read = torch.einsum("bhk,bhkv->bhv", q[:, t], S)
        assert torch.allclose(out[:, t], read, atol=1e-5)
    assert torch.allclose(after, S, atol=1e-5)


def test_a_loaded_model_is_still_tied(tiny):
    model = tiny[0]
    assert model.lm_head.weight is model.embed_tokens.weight
