"""Conversations on stories: questions that have exactly one right answer."""

from dataclasses import dataclass

from qwen.tiny.story import (
    COLOURED,
    Story,
    add_fact,
    capital,
    fresh,
    pick,
    tell,
)
from qwen.tiny.words import (
    FILL,
    FULL,
    IN_FULL,
    KINDS,
    NAMES,
    NEEDS,
    NOBODY,
    OBJECTS,
    PLACES,
    QUESTIONS,
)


@dataclass(frozen=True)
class Example:
    """A conversation on one story, and what kind each question is."""

    kind: str
    facts: int
    messages: tuple
    turn_kinds: tuple


def kinds_for(facts):
    """The question kinds that a story of so many facts can carry."""
    if facts > 1:
        return KINDS
    return tuple(k for k in KINDS if k not in ("moved", "before_move"))


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


def ask(story, kind, in_full=0.0):
    """A question of this kind, its answer, and the thought behind it.

    `in_full` is the chance that it wants a whole sentence.
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
    if kind == "before_move":
        words = fact
    elif kind == "who_put" and "later" in fact:
        half = rng.random() < 0.5
        words, thought = (
            (fact, fact["lines"][0]) if half else (words, fact["lines"][1])
        )
    slots = {**fact, **words, "d": fact.get("full")}
    if kind == "yes_no":
        question, answer = ask_yes_no(story, fact, words)
    else:
        if kind == "what_has" and fact["type"] == "give":
            slots["n"] = fact["m"]
        question = pick(rng, QUESTIONS[kind]).format(**slots)
        answer = answer_to(kind, fact, words)
    if in_full and rng.random() < in_full:
        question += IN_FULL
        yes = answer.split()[0] + " " if kind == "yes_no" else ""
        answer = yes + capital(FULL[kind].format(**slots))
    return question, answer, thought


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
        add_fact(story, type_, 1 if wanted and kind == "colour" else COLOURED)
        room -= 1 + (type_ == "move")
        wanted = ()
    return story


def chat(text, turns):
    """[(question, answer)] as messages; the story stands before the first."""
    messages = []
    for question, answer in turns:
        content = question if messages else f"{text} {question}"
        messages += [
            {"role": "user", "content": content},
            {"role": "assistant", "content": answer},
        ]
    return messages


def make_example(
    rng,
    facts,
    split="train",
    kind=None,
    turns=None,
    distractors=None,
    think=None,
    in_full=0.0,
):
    """A fresh conversation on a story of 1 to 6 facts.

    kind is that of the last question, turns the number of questions (None:
    1 to 5), distractors the number of sentences that do not matter, think
    whether the last answer comes with a thought, in_full the share of
    questions that want a whole sentence. Raises ValueError for what no
    story can have.
    """
    if not 1 <= facts <= 6:
        raise ValueError(f"a story has 1 to 6 facts, not {facts}")
    if distractors is not None and distractors < 0:
        raise ValueError(f"can't tell {distractors} idle sentence(s)")
    if turns is not None and turns < 1:
        raise ValueError(f"a conversation has no {turns} question(s)")
    kind = kind or pick(rng, kinds_for(facts))
    if kind not in kinds_for(facts):
        raise ValueError(f"no {kind!r} question on {facts} fact(s)")
    turns = turns or pick(rng, (1, 1, 1, 2, 2, 3, 4, 5))
    if distractors is None:
        distractors = rng.randint(0, facts)
    think = rng.random() < 0.15 if think is None else think
    story = make_story(rng, facts, split, kind)
    text = tell(story, distractors)
    asked = [(kind, *ask(story, kind, in_full))]
    tries = 0
    while len(asked) < turns:
        tries += 1
        if tries == 1000 * turns:
            raise ValueError(f"{facts} fact(s) don't give {turns} questions")
        other = pick(rng, KINDS)
        found = ask(story, other, in_full)
        if found and all(found[0] != turn[1] for turn in asked):
            asked.append((other, *found))
    asked.reverse()
    messages = chat(text, [turn[1:3] for turn in asked])
    if think:
        messages[-1]["reasoning_content"] = asked[-1][3]
    return Example(
        kind, facts, tuple(messages), tuple(turn[0] for turn in asked)
    )


def make_drill(rng, types, kinds, coloured, split="train"):
    """Four sentences of facts, an idle one, and four to six questions.

    All facts are of one type out of `types`; a question's kind is one of
    `kinds` that such facts can answer; `coloured` is the share of coloured
    things. In mixed stories a model learns to name some place of the story,
    and stays with that. Here only what belongs to what is left to be learnt.
    Raises ValueError where there are not enough questions.
    """
    story = Story(rng, split)
    type_ = pick(rng, types)
    facts = 2 if type_ == "move" else 4  # a move is two sentences
    for _ in range(facts):
        story.cast.clear()  # or one person would often be in several facts
        add_fact(story, type_, coloured)
    text = tell(story, 1)
    asked = {}
    turns = rng.randint(4, 6)
    able = [k for k in kinds if k == "nobody" or type_ in NEEDS[k]]
    tries = 0
    while len(asked) < turns:
        tries += 1
        if not able or tries == 1000:
            raise ValueError(
                f"too few questions of {kinds} on {type_!r} facts"
            )
        kind = pick(rng, able)
        found = ask(story, kind)
        if found and found[0] not in asked:
            asked[found[0]] = found[1], kind
    messages = chat(text, [(q, answer) for q, (answer, _) in asked.items()])
    kinds = tuple(kind for _, kind in asked.values())
    return Example("drill", facts, tuple(messages), kinds)
