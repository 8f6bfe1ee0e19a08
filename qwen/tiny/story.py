"""Stories of the small model: facts, drawn and told.

Everything here is made up by this project, so the text is free of licences.
Facts belong to the train or the test split by the three words that make them
up, so no test story occurs in training.
"""

import zlib
from dataclasses import dataclass, field

from qwen.tiny.words import (
    ANIMALS,
    COLOURS,
    COUNTS,
    FORMS,
    MOODS,
    NAMES,
    OBJECTS,
    OPENINGS,
    PLACES,
    PLURALS,
    ROOMS,
    SOUNDS,
)

COLOURED = 0.6  # the usual share of things with a colour


@dataclass
class Story:
    """The facts of one story, and the words that it has used up.

    A fact is a dict of its form's words, its type and its sentences. An
    object, a place, an owner and a person's whereabouts occur in one
    fact each, so that every question has one answer; only what is counted
    may be counted twice, by two people.
    """

    rng: object
    split: str
    facts: list = field(default_factory=list)
    cast: list = field(default_factory=list)
    used: set = field(default_factory=set)

    def __post_init__(self):
        if self.split not in ("train", "test"):
            raise ValueError(f"no split {self.split!r}, only train and test")


def split_of(first, second, third):
    """The split of three words: one combination in ten is for testing."""
    if (first, second, third) == ("Mia", "key", "drawer"):
        return "test"  # the book's own example stays unseen
    code = zlib.crc32(f"{first} {second} {third}".encode())
    return "test" if code % 10 == 0 else "train"


def pick(rng, items):
    """One item by chance: rng.choice, but quicker."""
    return items[int(rng.random() * len(items))]


def with_article(words):
    """'an apple', 'a red apple'."""
    return ("an " if words[0] in "aeiou" else "a ") + words


def capital(words):
    """The words with their first letter large."""
    return words[0].upper() + words[1:]


def fresh(story, items):
    """An item that the story does not hold yet."""
    while True:
        item = pick(story.rng, items)
        if item not in story.used:
            return item


def some_name(story):
    """A name, sometimes of a person whom the story knows already."""
    if story.cast and story.rng.random() < 0.3:
        return pick(story.rng, story.cast)
    return pick(story.rng, NAMES)


def some_owner(story, role):
    """A name that does not play this role in the story yet."""
    while True:
        name = some_name(story)
        if (role, name) not in story.used:
            return name


def draw_put(story):
    """Name, object, place."""
    place = fresh(story, PLACES)
    words = {"n": some_name(story), "o": fresh(story, OBJECTS), "place": place}
    return words, (words["n"], words["o"], place[1])


def draw_give(story):
    """Giver, object, receiver."""
    words = {
        "n": some_name(story),
        "o": fresh(story, OBJECTS),
        "m": some_owner(story, "owner"),
    }
    if words["n"] == words["m"]:
        return draw_give(story)
    return words, (words["n"], words["o"], words["m"])


def draw_have(story):
    """Name, object."""
    words = {"n": some_owner(story, "owner"), "o": fresh(story, OBJECTS)}
    return words, (words["n"], words["o"], "has")


def draw_count(story):
    """Name, objects, number; two people may count the same objects."""
    counted = [fact["o"] for fact in story.facts if fact["type"] == "count"]
    again = counted and story.rng.random() < 0.4
    one = pick(story.rng, counted) if again else fresh(story, OBJECTS)
    words = {
        "n": some_owner(story, "owner"),
        "o": one,
        "os": PLURALS[one],
        "k": pick(story.rng, COUNTS),
    }
    return words, (words["n"], words["os"], words["k"])


def draw_at(story):
    """Name, place."""
    place = fresh(story, ROOMS)
    words = {"n": some_owner(story, "at"), "place": place}
    return words, (words["n"], "is", place[1])


DRAW = {
    "put": draw_put,
    "move": draw_put,
    "give": draw_give,
    "have": draw_have,
    "count": draw_count,
    "at": draw_at,
}


def draw(story, draw_words, **fixed):
    """Draw words until their combination belongs to the split."""
    while True:
        words, triple = draw_words(story)
        if fixed:
            words.update(fixed)
            triple = (triple[0], words["o"], triple[2])
        if split_of(*triple) == story.split:
            break
    if "place" in words:
        words["p"] = "{} the {}".format(*words["place"])
    story.cast += [words[slot] for slot in "nm" if slot in words]
    story.used.update(words.get(slot) for slot in ("n", "m", "o", "place"))
    return words


def add_fact(story, kind, coloured=COLOURED):
    """Add one fact; a move is two, the second undoing the first.

    `coloured` is the share of things with a colour.
    """
    rng = story.rng
    fact = draw(story, DRAW[kind])
    fact["type"] = kind
    if kind in ("have", "count"):
        story.used.add(("owner", fact["n"]))
    if kind == "give":
        story.used.add(("owner", fact["m"]))
    if kind == "at":
        story.used.add(("at", fact["n"]))
    if kind not in ("count", "at"):
        colour = coloured == 1 or rng.random() < coloured
        fact["colour"] = pick(rng, COLOURS) if colour else ""
        full = f"{fact['colour']} {fact['o']}".strip()
        fact["full"] = full
        definite = kind != "have" and rng.random() < 0.6
        fact["d"] = "the " + full if definite else with_article(full)
    form = "put" if kind == "move" else kind
    fact["lines"] = [pick(rng, FORMS[form]).format(**fact)]
    if kind == "move":
        later = draw(story, draw_put, o=fact["o"])
        fact["lines"].append(pick(rng, FORMS["move"]).format(**later))
        fact["later"] = later
    story.facts.append(fact)


def tell(story, distractors):
    """The story's sentences: facts in any order, a move after its put."""
    rng = story.rng
    order = [fact for fact in story.facts for _ in fact["lines"]]
    rng.shuffle(order)
    told = {}
    lines = []
    for fact in order:
        number = told.get(id(fact), 0)
        lines.append(fact["lines"][number])
        told[id(fact)] = number + 1
    opening = distractors and rng.random() < 0.5
    people = story.cast + [pick(rng, NAMES), pick(rng, NAMES)]
    story.used.update(people)
    seen = set()
    missing = distractors - bool(opening)
    while missing > 0:
        line = pick(rng, pick(rng, (SOUNDS, ANIMALS, MOODS)))
        line = line.format(n=pick(rng, people))
        if line in seen and len(seen) < 60:
            continue  # only a very long story repeats a sentence
        seen.add(line)
        lines.insert(int(rng.random() * (len(lines) + 1)), line)
        missing -= 1
    if opening:
        lines.insert(0, pick(rng, OPENINGS))
    return " ".join(lines)
