"""What is trained when, and at which rate."""

from dataclasses import dataclass
from functools import partial
from math import cos, pi

from qwen.tiny.words import FORMS, KINDS

RATE, WARMUP = 1e-3, 100
# the kinds whose answer is a thing or a person
MANY = ("what_in", "what_has", "who_put", "who_gave", "who_has", "given")


@dataclass(frozen=True)
class Lesson:
    """What the rows of a stretch of training are; the shares are of 1.

    One row in eight is a tale. Of the others, `drills` are drills, as running
    text: facts of `types`, questions of `kinds`, a share `coloured` of
    coloured things. The rest are stories of up to `most_facts` facts: `plain`
    of them as running text instead of chat, `many` with a last question for
    one of `asked`, and `in_full` of their answers as whole sentences. `rate`
    is a factor on the rate of the training.
    """

    most_facts: int
    drills: float = 0.0
    types: tuple = ("put",)
    kinds: tuple = ("where", "who_put", "what_in", "colour", "yes_no")
    coloured: float = 0.5
    plain: float = 0.0
    many: float = 0.0
    asked: tuple = MANY
    in_full: float = 0.0
    rate: float = 1.0


TYPES, FOUND = tuple(FORMS), tuple(kind for kind in KINDS if kind != "nobody")
BASIC = ("where", "who_put", "what_in")
RARE = ("give", "have", "count", "at")  # most facts of a story are others
# What is learnt last: an answer that is found by a name, a number, and a
# moved thing with its colour, which is said before it is moved.
LAST = ("at", "have", "count", "move")
SLOW = ("person_place", "what_has", "count", "what_in")
NAMED = ("at", "give", "count", "put")
HELD = ("person_place", "what_has", "given", "count", "what_in")
THINGS = ("put", "move", "give", "have")
WHAT = ("what_in", "what_has", "before_move")
# Each lesson up to this part of the way. First, with tales only beside it,
# what belongs to what; then with colours, and yes or no. Then all stories,
# without the chat around them; then ever more of it as chats, and more facts.
# Drills go on for what stays behind. What they hold was chosen by `report`
# of train.py: on the test split, but on other stories than the card's.
STORIES = partial(Lesson, in_full=0.1, many=0.3)
WHATS = partial(
    STORIES, types=THINGS, kinds=WHAT, coloured=0.6, asked=WHAT[:2]
)
COURSE = (
    (0.05, Lesson(4, 1.0, kinds=BASIC, coloured=0, rate=2.0)),
    (0.1, Lesson(4, 1.0, rate=2.0)),
    (0.22, STORIES(5, 0.5, TYPES, KINDS, plain=0.9, many=0.4)),
    (0.3, STORIES(5, 0.5, RARE, FOUND, plain=0.9, many=0.4)),
    (0.37, STORIES(6, 0.1, TYPES, KINDS, plain=0.3)),
    (0.44, Lesson(6, 0.6, ("count", "put"), ("count", "yes_no"), plain=0.3)),
    (0.62, STORIES(6, 0.1, TYPES, KINDS, plain=0.3)),
    (0.708, STORIES(6, 0.4, LAST, SLOW, plain=0.1)),
    (0.8, STORIES(6, 0.5, NAMED, HELD, rate=3.0)),
    (0.8625, STORIES(6, 0.4, TYPES, HELD, rate=3.0)),
    (0.96, WHATS(6, 0.35, many=0.5, rate=6.0)),
    (1.0, WHATS(6, 0.15, many=0.4, rate=3.0)),
)


def rate_at(step, steps):
    """Warm up, then a half cosine to a hundredth, times the lesson's `rate`.

    The first two lessons want a high rate, at which the mixed stories that
    follow would make the model lose what it has found. Drills near the end,
    where the cosine is low, are given more than that.
    """
    lesson = lesson_at(step, steps)
    if step < WARMUP:
        return lesson.rate * RATE * (step + 1) / WARMUP
    begun = COURSE[1][0]
    done = max(0, (step / steps - begun) / (1 - begun))
    return lesson.rate * RATE * (0.01 + 0.99 * (1 + cos(pi * done)) / 2)


def lesson_at(step, steps):
    """The lesson of a step, from easy to hard."""
    done = step / steps
    return next(lesson for end, lesson in COURSE if done < end)
