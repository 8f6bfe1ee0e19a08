"""Stories, questions and plain narrative for the small model.

Everything here is made up by this project, so the text is free of licences.
A story is a few facts and some sentences that do not matter; a question
has exactly one right answer. Facts belong to the train or the test split
by the three words that make them up, so no test story occurs in training.
"""

import zlib
from dataclasses import dataclass, field

from qwen.tiny.words import (
    ANIMALS,
    COLOURS,
    COUNTS,
    FILL,
    FORMS,
    KINDS,
    MOODS,
    NAMES,
    NEEDS,
    NOBODY,
    OBJECTS,
    OPENINGS,
    PLACES,
    PLURALS,
    QUESTIONS,
    ROOMS,
    SOUNDS,
)


@dataclass(frozen=True)
class Example:
    """A conversation on one story, and what kind each question is."""

    kind: str
    facts: int
    messages: tuple
    turn_kinds: tuple


@dataclass
class Story:
    """The facts of one story, and the words that it has used up.

    A fact is a dict of its form's words, its type and its sentences. An
    object, a place, an owner and a person's whereabouts occur in one
    fact each, so that every question has one answer.
    """

    rng: object
    split: str
    facts: list = field(default_factory=list)
    cast: list = field(default_factory=list)
    used: set = field(default_factory=set)


def split_of(first, second, third):
    """The split of three words: one combination in ten is for testing."""
    if (first, second, third) == ("Mia", "key", "drawer"):
        return "test"  # the book's own example stays unseen
    code = zlib.crc32(f"{first} {second} {third}".encode())
    return "test" if code % 10 == 0 else "train"


def kinds_for(facts):
    """The question kinds that a story of so many facts can carry."""
    if facts > 1:
        return KINDS
    return tuple(k for k in KINDS if k not in ("moved", "before_move"))


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


def add_fact(story, kind, coloured=False):
    """Add one fact; a move is two, the second undoing the first."""
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
        colour = coloured or rng.random() < 0.6
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
    while missing:
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


def ask_nobody(story):
    """Ask for an object or a person that is not in the story."""
    question, answer = pick(story.rng, NOBODY)
    name, thing = fresh(story, NAMES), fresh(story, OBJECTS)
    thought = (
        f"{name} is not in the story."
        if "{n}" in question
        else f"No {thing} is in the story."
    )
    return question.format(n=name, o=thing), answer, thought


def ask_yes_no(story, fact, words):
    """Ask for the right place, or for a wrong one, and say so."""
    rng = story.rng
    right = words["p"]
    if rng.random() < 0.5:
        place, answer = right, "Yes."
    else:
        others = [
            other["p"]
            for other in story.facts
            if other.get("p", right) != right
        ]
        place = "{} the {}".format(*fresh(story, PLACES))
        if others and rng.random() < 0.7:
            place = pick(rng, others)
        answer = f"No. It is {right}."
    form = pick(rng, QUESTIONS["yes_no"])
    return form.format(o=fact["o"], d=fact["full"], p=place), answer


def ask(story, kind):
    """A question of this kind, its answer, and the thought behind it.

    None when the story holds no fact that could answer it.
    """
    rng = story.rng
    if kind == "nobody":
        return ask_nobody(story)
    able = [
        fact
        for fact in story.facts
        if fact["type"] in NEEDS[kind] and (kind != "colour" or fact["colour"])
    ]
    if not able:
        return None
    fact = pick(rng, able)
    words = fact.get("later", fact)
    thought = " ".join(fact["lines"])
    if kind == "yes_no":
        return *ask_yes_no(story, fact, words), thought
    if kind == "before_move":
        words = fact
    elif kind == "who_put" and "later" in fact:
        half = rng.random() < 0.5
        words, thought = (
            (fact, fact["lines"][0]) if half else (words, fact["lines"][1])
        )
    slots = {**words, "d": fact.get("full")}
    if kind == "what_has" and fact["type"] == "give":
        slots["n"] = fact["m"]
    question = pick(rng, QUESTIONS[kind]).format(**slots)
    return question, answer_to(kind, fact, words), thought


def answer_to(kind, fact, words):
    """The one right answer; words are those of the place asked about."""
    if kind in ("where", "moved", "before_move", "person_place"):
        return capital(words["p"]) + "."
    if kind in ("who_put", "who_gave", "who_has"):
        return words["n"] + "."
    if kind == "given":
        return fact["m"] + "."
    if kind in ("what_in", "what_has"):
        return f"The {fact['full']}."
    return capital(fact["colour"] if kind == "colour" else fact["k"]) + "."


def make_story(rng, facts, split, kind):
    """A story of so many facts that can answer a question of this kind."""
    story = Story(rng, split)
    room = facts
    wanted = NEEDS[kind]
    while room:
        types = wanted or FILL
        type_ = pick(rng, types)
        if type_ == "move" and room < 2:
            type_ = "put"
        add_fact(story, type_, coloured=wanted and kind == "colour")
        room -= 1 + (type_ == "move")
        wanted = ()
    return story


def make_example(
    rng,
    facts,
    split="train",
    kind=None,
    turns=None,
    distractors=None,
    think=None,
):
    """A fresh conversation on a story of 1 to 6 facts.

    kind is that of the last question, turns the number of questions (1 to
    5), distractors the number of sentences that do not matter, think
    whether the last answer comes with a thought.
    """
    kind = kind or pick(rng, kinds_for(facts))
    if kind not in kinds_for(facts):
        raise ValueError(f"no {kind!r} question on {facts} fact(s)")
    turns = turns or pick(rng, (1, 1, 1, 2, 2, 3, 4, 5))
    if distractors is None:
        distractors = rng.randint(0, facts)
    think = rng.random() < 0.15 if think is None else think
    story = make_story(rng, facts, split, kind)
    text = tell(story, distractors)
    asked = [(kind, *ask(story, kind))]
    while len(asked) < turns:
        other = pick(rng, KINDS)
        found = ask(story, other)
        if found and all(found[0] != turn[1] for turn in asked):
            asked.append((other, *found))
    asked.reverse()
    messages = []
    for number, (_, question, answer, _) in enumerate(asked):
        content = question if number else f"{text} {question}"
        messages += [
            {"role": "user", "content": content},
            {"role": "assistant", "content": answer},
        ]
    if think:
        messages[-1]["reasoning_content"] = asked[-1][3]
    return Example(
        kind, facts, tuple(messages), tuple(turn[0] for turn in asked)
    )


def make_echo(rng, facts, split="train", distractors=None):
    """A story, and the request to tell it again: the answer is the story.

    To repeat is the simplest use of a memory, and every word of it is a
    lesson: a model that has learnt it finds answers much sooner.
    """
    example = make_example(rng, facts, split, None, 1, distractors, False)
    content = example.messages[0]["content"]
    story = content[: content.rindex(". ") + 1]
    messages = (
        {"role": "user", "content": f"{story} Tell it again."},
        {"role": "assistant", "content": story},
    )
    return Example("again", facts, messages, ("again",))
