# Run: python -m pytest tests/test_tiny.py
"""The small model that ships with the book, and its training."""

import random
import time
from functools import partial

import pytest
import torch
from transformers import AutoTokenizer, Qwen3_5ForCausalLM

from qwen import generate, load
from qwen.deltanet import delta_rule
from qwen.norm import l2norm
from qwen.tiny import train as training
from qwen.tiny.ablate import additive_rule
from qwen.tiny.corpus import make_example
from qwen.tiny.data import encode_pieces, train_tokenizer, transcript
from qwen.tiny.evaluate import ask, questions, right_answers
from qwen.tiny.fresh import new_model, spell_alike
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


def test_fresh_attention_reads_tokens_like_its_own():
    model = new_model(0)
    x = model.embed_tokens(torch.tensor([[300, 301, 302, 303, 301]]))
    attention = model.layers[3].self_attn
    q = attention.q_proj(x).unflatten(-1, (4, 2, 32))[..., 0, :]
    k = attention.k_proj(x).unflatten(-1, (2, 32)).repeat_interleave(2, 2)
    scores = torch.einsum("bthd,bshd->bhts", q, k)[0, :, 4]
    assert (scores[:, [1]] > scores[:, [0, 2, 3]]).all()


@pytest.mark.parametrize(("mimetic", "finds"), [(True, True), (False, False)])
def test_a_fresh_query_finds_what_followed_a_token(mimetic, finds):
    model = new_model(0, mimetic=mimetic)
    torch.manual_seed(1)
    ids = torch.randperm(1000)[:40]
    ids[-1] = ids[20]  # and ids[21] is what followed it
    seen = {}

    def spy(q, k, v, g, beta, S=None):
        out, S = delta_rule(q, k, v, g, beta, S)
        seen.update(q=q, k=k)
        return out, S

    model.layers[0].linear_attn.rule = spy
    model(ids[None])
    q, k = seen["q"][0, -1, 0], seen["k"][0, :-1, 0]
    near = torch.cosine_similarity(q[None], k, dim=-1)
    assert (int(near.argmax()) == 21) == finds


def test_a_killed_training_goes_on_to_the_same_file(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "BATCH", 4)
    monkeypatch.setattr(training, "TOKENS", 300)
    short = partial(train_tokenizer, stories=300)
    monkeypatch.setattr(training, "train_tokenizer", short)
    monkeypatch.setattr(training, "ask", lambda *_: [("where", 1, True)])
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    training.train(1, 6, plain, every=2)
    real_loss, calls = training.loss_of, []

    def dies_at_the_fourth_step(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real_loss(*arguments)

    monkeypatch.setattr(training, "loss_of", dies_at_the_fourth_step)
    with pytest.raises(KeyboardInterrupt):
        training.train(1, 6, killed, every=2)
    assert not (killed / "model.safetensors").exists()
    training.train(1, 6, killed, every=2)
    assert len(calls) == 4 + 4  # steps 3 to 6 again, not 1 and 2
    one, two = (f / "model.safetensors" for f in (plain, killed))
    assert one.read_bytes() == two.read_bytes()
    monkeypatch.setattr(training, "loss_of", real_loss)
    training.train(2, 6, tmp_path / "other", every=2)
    other = tmp_path / "other" / "model.safetensors"
    assert other.read_bytes() != one.read_bytes()


def test_the_additive_rule_adds_and_never_subtracts():
    B, T, Hk, Hv, dk, dv = 2, 9, 2, 4, 4, 6
    torch.manual_seed(0)
    q, k = torch.randn(B, T, Hk, dk), torch.randn(B, T, Hk, dk)
    v, g = torch.randn(B, T, Hv, dv), -torch.rand(B, T, Hv)
    beta, S = torch.rand(B, T, Hv), torch.randn(B, Hv, dk, dv)
    out, after = additive_rule(q, k, v, g, beta, S)
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
