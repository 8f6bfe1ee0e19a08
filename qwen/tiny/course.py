"""What is trained when, and at which rate."""

from dataclasses import dataclass
from functools import partial
from math import cos, pi

from qwen.tiny.words import FORMS, KINDS

RATE, WARMUP = 1e-3, 100
HOLD = 0.1  # the share of the steps before the rate begins to fall


@dataclass(frozen=True)
class Lesson:
    """What the rows of a stretch of training are; the shares are of 1.

    One row in eight is a tale. Of the others, `drills` are drills: facts of
    `types`, questions of `kinds`, a share `coloured` of coloured things. The
    rest are stories of up to `most_facts` facts: `many` of them are given a
    last question whose answer is a thing or a person, and `in_full` of their
    answers are whole sentences. Drills are running text, or with
    `drills_as_chats`, like the stories, chats but for a share `plain`.
    `rate` is a factor on the rate of the training.
    """

    most_facts: int
    drills: float = 0.0
    types: tuple = ("put",)
    kinds: tuple = ("where", "who_put", "what_in", "colour", "yes_no")
    coloured: float = 0.5
    drills_as_chats: bool = False
    plain: float = 0.0
    many: float = 0.0
    in_full: float = 0.0
    rate: float = 1.0


TYPES, FOUND = tuple(FORMS), tuple(kind for kind in KINDS if kind != "nobody")
MOST = ("give", "have", "put") * 2 + ("move", "at")
RARE = ("give", "have", "count", "at")  # most facts of a story are others
GIFTS = ("give", "have", "move", "move", "put", "give")
OWNED = ("at", "give", "move", "count", "have")
PEOPLE = ("at", "move", "at", "put", "give")
MOVED = ("move", "move", "put", "give", "at")
BASIC = ("where", "who_put", "what_in")
HELD = ("what_has", "what_in", "before_move", "moved", "given")
NAMED = (
    "person_place", "what_has", "what_in", "count", "given", "before_move"
)  # fmt: skip
PLACED = (
    "what_in", "moved", "where", "yes_no", "before_move", "what_has",
    "person_place",
)  # fmt: skip
STORIES = partial(Lesson, in_full=0.1, many=0.3)
CHATS = partial(STORIES, drills_as_chats=True, plain=0.1)
# Each lesson up to this part of the way. First, with tales only beside it,
# what belongs to what; then with colours, and yes or no; then all facts but
# the counted. Then stories, with drills among them of what is behind: all as
# running text at first, and from 0.44 on mostly as chats. A drill as running
# text teaches to find an answer next to its question, and in a chat up to a
# dozen tokens stand between. What the drills hold was chosen by `report` of
# train.py: on the test split, but on other stories than the card's.
COURSE = (
    (0.05, Lesson(4, 1.0, kinds=BASIC, coloured=0, rate=2.0)),
    (0.1, Lesson(4, 1.0, rate=2.0)),
    (0.16, Lesson(4, 1.0, MOST, FOUND, rate=2.0)),
    (0.22, STORIES(5, 0.5, TYPES, KINDS, plain=0.9, many=0.4)),
    (0.3, STORIES(5, 0.5, RARE, FOUND, plain=0.9, many=0.4)),
    (0.37, STORIES(6, 0.1, TYPES, KINDS, plain=0.3)),
    (0.44, Lesson(6, 0.6, ("count", "put"), ("count", "yes_no"), plain=0.3)),
    (0.52, CHATS(6, 0.5, ("give", "have", "put", "move"), HELD, rate=1.5)),
    (0.62, CHATS(6, 0.5, GIFTS, HELD, rate=1.5)),
    (0.72, CHATS(6, 0.5, OWNED, NAMED, rate=2.0)),
    (0.8, CHATS(6, 0.5, MOVED, PLACED, rate=2.5)),
    (0.88, CHATS(6, 0.5, PEOPLE, FOUND, rate=5.0)),
    (0.96, CHATS(6, 0.4, (*PEOPLE, "count", "have"), FOUND, rate=4.0)),
    (1.0, CHATS(6, 0.2, (*PEOPLE, "count", "have"), FOUND, rate=3.0)),
)


def rate_at(step, steps):
    """Warm up, hold, then fall to a hundredth, times the lesson's `rate`.

    It falls as a half cosine. The first lessons want a high rate, at which
    the mixed stories that follow would make the model lose what it has
    found. Drills near the end, where the cosine is low, are given more.
    """
    rate = RATE * lesson_at(step, steps).rate
    if step < WARMUP:
        return rate * (step + 1) / WARMUP
    fallen = max(0, (step / steps - HOLD) / (1 - HOLD))
    return rate * (0.01 + 0.99 * (1 + cos(pi * fallen)) / 2)


def lesson_at(step, steps):
    """The lesson of a step."""
    done = step / steps
    return next(lesson for end, lesson in COURSE if done < end)
