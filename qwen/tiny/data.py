"""Examples as ids: the tokenizer of the small model, batches, weights."""

import random
from pathlib import Path

import torch
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from tokenizers import Tokenizer as Core

from qwen.tiny.corpus import make_drill, make_example
from qwen.tiny.narrative import make_narrative

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>")
# the kinds whose answer is a thing or a person
MANY = ("what_in", "what_has", "who_put", "who_gave", "who_has", "given")
# an answer token counts ten times as much as a token of its story, or the
# model learns the stories' grammar and no recall
STORY_WEIGHT, TALE_WEIGHT = 0.1, 0.3
# the family's rule for cutting text into words before BPE
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def transcript(messages):
    """Messages -> [(text, trained)], as the chat template writes them.

    `trained` pieces are what the assistant writes itself.
    """
    pieces = []
    for n, message in enumerate(messages):
        role, last = message["role"], n == len(messages) - 1
        pieces.append((f"<|im_start|>{role}\n", False))
        if role == "assistant" and last:
            thought = message.get("reasoning_content")
            pieces.append(("<think>\n", False))
            pieces.append((f"{thought or ''}\n</think>\n\n", bool(thought)))
        answer = role == "assistant"
        pieces.append((message["content"] + "<|im_end|>", answer))
        pieces.append(("\n", False))
    return pieces


def encode_pieces(tokenizer, pieces):
    """[(text, trained)] -> (ids, trained flags), as one encoded text."""
    text = "".join(piece for piece, _ in pieces)
    marks = [flag for piece, flag in pieces for _ in piece]
    encoded = tokenizer.core.encode(text, add_special_tokens=False)
    return encoded.ids, [marks[start] for start, _ in encoded.offsets]


def narrative_pieces(rng):
    return [(make_narrative(rng), False), ("<|endoftext|>", False)]


def plain_pieces(messages):
    """Messages -> [(text, trained)]: one running text, no chat around it.

    An answer follows its question at once. In a chat a dozen tokens stand
    between, and the question must be remembered over those as well.
    """
    pieces = []
    for message in messages:
        space = " " if pieces else ""
        answer = message["role"] == "assistant"
        pieces.append((space + message["content"], answer))
    return pieces


def draw_rows(tokenizer, seed, block, lesson, count):
    """`count` rows of training text, shortest first; one in eight a tale.

    A row is (ids, weight of each id as a target); `lesson` is a
    `qwen.tiny.course.Lesson`. The same seed and block give the same rows.
    """
    rng = random.Random(f"{seed}/{block}")
    most = lesson.most_facts
    rows = []
    for n in range(count):
        # of two numbers the larger: many facts are harder to learn than few
        facts = max(rng.randint(1, most), rng.randint(1, most))
        if n % 8 == 7:
            ids, _ = encode_pieces(tokenizer, narrative_pieces(rng))
            rows.append((ids, [TALE_WEIGHT] * len(ids)))
            continue
        drilled = rng.random() < lesson.drills
        if drilled:
            example = make_drill(
                rng, lesson.types, lesson.kinds, lesson.coloured
            )
        else:
            many = rng.random() < lesson.many
            kind = rng.choice(MANY) if many else None
            turns = rng.randint(2, 7)
            example = make_example(
                rng, facts, kind=kind, turns=turns, in_full=lesson.in_full
            )
        running = drilled and not lesson.drills_as_chats
        plain = running or rng.random() < lesson.plain
        to_pieces = plain_pieces if plain else transcript
        ids, trained = encode_pieces(tokenizer, to_pieces(example.messages))
        weight = [1.0 if flag else STORY_WEIGHT for flag in trained]
        rows.append((ids, weight))
    return sorted(rows, key=lambda row: len(row[0]))


def to_batch(rows):
    """Rows -> ids [B, T] and weights [B, T], padded on the right."""
    T = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), T, dtype=torch.long)
    weights = torch.zeros(len(rows), T)
    for n, (row, weight) in enumerate(rows):
        ids[n, : len(row)] = torch.tensor(row)
        weights[n, : len(row)] = torch.tensor(weight)
    return ids, weights


def train_tokenizer(path, size, stories=20_000):
    """Learn a byte-level BPE of `size` ids; write its files to `path`."""
    rng = random.Random("tokenizer")
    texts = []
    for n in range(stories):
        pieces = transcript(make_example(rng, 1 + n % 6).messages)
        texts.append("".join(text for text, _ in pieces))
        texts.append(make_narrative(rng))
    core = Core(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=[*SPECIAL, *TAGS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    # the tags are text that a reader may want to see, not control tokens
    core.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    core.save(str(Path(path) / "tokenizer.json"))
