# Run with: python -m pytest tests/test_corpus.py
"""The corpus: its size, its split, and each answer worked out anew.

The test reads a story with its own patterns and knows nothing of how the
corpus made it; then it answers the questions from what it read.
"""

import random
import re

import pytest

from qwen.tiny import corpus
from qwen.tiny import words as tables
from qwen.tiny.corpus import KINDS, make_drill, make_example
from qwen.tiny.narrative import make_narrative
from qwen.tiny.story import split_of

NAME = "([A-Z][a-z]+)"
THING = (
    rf"(?:the|an?) (?:({'|'.join(tables.COLOURS)}) )?"
    rf"({'|'.join(tables.OBJECTS)})"
)
PLACE = r"((?:in|on|under|behind) the [a-z]+)"
ONE = {many: one for one, many in tables.PLURALS.items()}
NOT_SAID = {"The story does not say."}


def patterns(*forms):
    """Compile forms in which N, D, O and P stand for the parts."""
    parts = {"N": NAME, "D": THING, "O": "the ([a-z]+)", "P": PLACE}
    return [
        re.compile(re.sub(r"\b[NDOP]\b", lambda m: parts[m[0]], form))
        for form in forms
    ]


PUT = patterns("N (?:put|left|hid|placed) D P", "N took D and put it P")
MOVE = patterns(
    "(?:Then|Later) N put O P",
    "Later N took O and put it P",
    "Then N took O and left it P",
    "After that N found O and hid it P",
)
GIVE = patterns("N (?:gave|handed) D to N")
GIVE_TO = patterns("N gave N D")
GET = patterns("N got D from N")
HAVE = patterns("N (?:has|bought|holds|carries) D")
COUNT = patterns("N (?:has|bought|found) ([a-z]+) ([a-z]+)")
AT = patterns("N (?:is|sat|waited|stood|played) P")
COUNT = [
    re.compile(
        COUNT[0].pattern.replace(
            "([a-z]+) ([a-z]+)", f"({'|'.join(tables.COUNTS)}) ([a-z]+)"
        )
    )
]


def match(forms, text):
    """The parts of the first form that the whole text has, or None."""
    for form in forms:
        found = form.fullmatch(text)
        if found:
            return found.groups()
    return None


class World:
    """What a reader knows after reading a story."""

    def __init__(self, story):
        self.puts, self.colours, self.gifts = [], {}, []
        self.haves, self.counts, self.ats = [], [], []
        self.triples, self.noise, self.sentences = [], [], 0
        self.words = set(re.findall("[A-Za-z]+", story))
        self.things = {ONE.get(word, word) for word in self.words}
        for sentence in story.rstrip(".").split(". "):
            self.read(sentence)

    def read(self, text):
        self.sentences += 1
        if found := match(PUT, text):
            name, colour, thing, place = found
            assert all(put[1] != thing for put in self.puts)
            self.put(name, thing, place, colour)
        elif found := match(MOVE, text):
            assert any(put[1] == found[1] for put in self.puts)
            self.put(*found)
        elif found := (match(GIVE, text) or self.turned(text)):
            giver, colour, thing, name = found
            self.gifts.append((giver, thing, name))
            self.colours[thing] = colour
            self.triples.append((giver, thing, name))
        elif found := match(COUNT, text):
            name, number, things = found
            self.counts.append((name, things, number))
            self.triples.append((name, things, number))
        elif found := match(HAVE, text):
            name, colour, thing = found
            self.haves.append((name, thing))
            self.colours[thing] = colour
            self.triples.append((name, thing, "has"))
        elif found := match(AT, text):
            self.ats.append(found)
            self.triples.append((found[0], "is", found[1].split()[-1]))
        else:
            self.noise.append(text)

    def turned(self, text):
        """The other orders of a gift, put right."""
        if found := match(GET, text):
            name, colour, thing, giver = found
            return giver, colour, thing, name
        if found := match(GIVE_TO, text):
            giver, name, colour, thing = found
            return giver, colour, thing, name
        return None

    def put(self, name, thing, place, colour=None):
        self.puts.append((name, thing, place))
        self.colours.setdefault(thing, colour)
        self.triples.append((name, thing, place.split()[-1]))

    def full(self, thing):
        colour = self.colours[thing]
        return f"The {colour} {thing}." if colour else f"The {thing}."

    def last_places(self):
        return {thing: place for _, thing, place in self.puts}

    def answers(self, text):
        """All answers that the story gives to a question."""
        colour = rf"(?:(?:{'|'.join(tables.COLOURS)}) )?"

        def ask(form):
            form = form.replace("the T", f"the {colour}([a-z]+)")
            return match(patterns(form), text)

        if found := ask("Where (?:is|can I find) the T(?: now)?\\?"):
            places = self.last_places()
            thing = found[0]
            return (
                {capital(places[thing])}
                if thing in places
                else self.absent(thing, NOT_SAID)
            )
        if found := ask("Where was the T (?:at first|before)\\?"):
            places = [put[2] for put in self.puts if put[1] == found[0]]
            assert len(places) == 2
            return {capital(places[0])}
        if found := ask("Where (?:is|can I find) N\\?"):
            return {
                capital(p) for n, p in self.ats if n == found[0]
            } or self.absent(found[0], NOT_SAID)
        if found := ask("Who (?:put|left) the T P\\?"):
            return {n + "." for n, *rest in self.puts if tuple(rest) == found}
        if found := (
            ask("What colour is the T\\?")
            or ask("What is the colour of the T\\?")
        ):
            return {capital(self.colours[found[0]])}
        if found := ask("What (?:is|can I find) P\\?"):
            return {
                self.full(thing)
                for thing, place in self.last_places().items()
                if place == found[0]
            }
        if found := ask("What did N put P\\?"):
            return {
                self.full(thing)
                for n, thing, p in self.puts
                if (n, p) == found
            }
        if found := ask("How many ([a-z]+) (?:does|has) N (?:have|got)\\?"):
            return {
                capital(number)
                for n, things, number in self.counts
                if (things, n) == found
            }
        return self.owners(ask)

    def owners(self, ask):
        """Answers to the questions on who has what, and yes or no."""
        if found := ask("Who ha[sd] the T(?: now| at the end)?\\?"):
            return {
                n + "." for _, thing, n in self.gifts if thing == found[0]
            } | {
                n + "." for n, thing in self.haves if thing == found[0]
            } or self.absent(found[0], {"Nobody had it."})
        if found := ask("Who gave the T to N\\?"):
            return {n + "." for n, *rest in self.gifts if tuple(rest) == found}
        if found := ask("Who gave N the T\\?"):
            return {
                n + "."
                for n, *rest in self.gifts
                if tuple(rest[::-1]) == found
            }
        if found := ask("What (?:does|has) N (?:have|got)\\?"):
            assert all(n != found[0] for n, *_ in self.counts)
            return {
                self.full(thing) for _, thing, n in self.gifts if n == found[0]
            } | {self.full(thing) for n, thing in self.haves if n == found[0]}
        thing, place = ask("Is the T P\\?")
        right = self.last_places()[thing]
        return {"Yes." if right == place else f"No. It is {right}."}

    def absent(self, word, answer):
        assert word not in self.words | self.things
        return answer


def capital(text):
    return text[0].upper() + text[1:] + "."


def split_story(example):
    """The story and the first question."""
    text = example.messages[0]["content"]
    end = text.rindex(". ") + 1
    return text[:end], text[end + 1 :]


def turns_of(example):
    """Question and answer of every turn."""
    users, replies = example.messages[::2], example.messages[1::2]
    questions = [m["content"] for m in users]
    questions[0] = split_story(example)[1]
    return list(zip(questions, (m["content"] for m in replies)))


def samples(count, seed=0, **options):
    rng = random.Random(seed)
    return [make_example(rng, 1 + n % 6, **options) for n in range(count)]


def test_the_lists_are_long_and_clean():
    places = [place for _, place in tables.PLACES]
    assert len(tables.SHE) >= 30 and len(tables.HE) >= 30
    lists = (tables.NAMES, tables.OBJECTS, places)
    assert all(len(words) >= 60 for words in lists)
    assert len(tables.COLOURS) == 12 and len(tables.COUNTS) == 8
    assert len(KINDS) >= 12
    words = [
        *tables.NAMES,
        *tables.OBJECTS,
        *places,
        *tables.COLOURS,
        *tables.COUNTS,
        *tables.PLURALS.values(),
    ]
    lower = [word.lower() for word in words]
    assert len(set(lower)) == len(lower)
    assert all(word.isalpha() for word in words)
    assert all(word == word.lower() for word in words[len(tables.NAMES) :])
    assert set(tables.ROOMS) <= set(tables.PLACES)


def test_the_language_is_small():
    words = set()
    for example in samples(4000):
        for message in example.messages:
            for text in message.values():
                words.update(re.findall("[a-z]+", text.lower()))
    rng = random.Random(0)
    for _ in range(4000):
        words.update(re.findall("[a-z]+", make_narrative(rng).lower()))
    assert 400 < len(words) < 600


def test_the_same_seed_gives_the_same_text():
    assert samples(200, seed=3) == samples(200, seed=3)
    assert samples(200, seed=3) != samples(200, seed=4)
    one, two = random.Random(5), random.Random(5)
    assert make_narrative(one) == make_narrative(two)


def test_the_split_is_one_in_ten_and_holds_the_books_example_back():
    assert split_of("Mia", "key", "drawer") == "test"
    assert "red" in tables.COLOURS and ("in", "drawer") in tables.PLACES
    triples = [
        (name, thing, place)
        for name in tables.NAMES
        for thing in tables.OBJECTS
        for _, place in tables.PLACES
    ]
    test = sum(split_of(*three) == "test" for three in triples)
    assert 0.09 < test / len(triples) < 0.11


def test_no_test_story_occurs_in_training():
    stories = {}
    for split in ("train", "test"):
        stories[split] = set()
        for example in samples(3000, split=split):
            story = split_story(example)[0]
            triples = World(story).triples
            assert len(triples) == example.facts
            assert {split_of(*t) for t in triples} == {split}
            stories[split].add(story)
    assert not stories["train"] & stories["test"]
    rng = random.Random(0)
    for _ in range(3000):
        for sentence in make_narrative(rng).rstrip(".").split(". "):
            triples = (
                World(sentence).triples if not match(MOVE, sentence) else []
            )
            assert {split_of(*t) for t in triples} <= {"train"}


def test_the_books_example_can_be_told():
    put = tables.FORMS["put"][0].format(
        n="Mia", d="the red key", p="in the drawer"
    )
    question = tables.QUESTIONS["where"][0].format(o="key")
    assert put == "Mia put the red key in the drawer."
    assert question == "Where is the key?"
    assert World(put).answers(question) == {"In the drawer."}


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_is_the_only_right_one(kind):
    rng = random.Random(1)
    for number in range(300):
        facts = 1 + number % 6
        if kind not in corpus.kinds_for(facts):
            with pytest.raises(ValueError):
                make_example(rng, facts, kind=kind)
            continue
        example = make_example(
            rng, facts, kind=kind, split=("train", "test")[number % 2]
        )
        assert example.kind == example.turn_kinds[-1] == kind
        assert example.facts == facts
        world = World(split_story(example)[0])
        for question, answer in turns_of(example):
            assert world.answers(question) == {answer}, example


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_sentence_says_first_what_was_asked_about(kind):
    nouns = {*tables.NAMES, *tables.OBJECTS, *tables.PLURALS.values()}
    nouns |= {place for _, place in tables.PLACES}
    rng = random.Random(2)
    for _ in range(200):
        example = make_example(rng, 4, kind=kind, in_full=1.0)
        world = World(split_story(example)[0])
        for (question, answer), asked in zip(
            turns_of(example), example.turn_kinds, strict=True
        ):
            short = world.answers(question.removesuffix(tables.IN_FULL))
            if asked == "nobody":
                assert {answer} == short
                continue
            assert question.endswith("? Say it in full.")
            (short,) = short
            if asked == "yes_no":
                verdict, answer = answer.split(" ", 1)
                assert short.startswith(verdict)
                (thing,) = {*question.split()} & {*tables.OBJECTS}
                short = world.last_places()[thing]
            short = short.removeprefix("The ").rstrip(".").lower()
            before, found, _ = answer.lower().partition(short)
            assert found
            named = {word.lower() for word in nouns} & set(before.split())
            assert named & set(re.findall("[a-z]+", question.lower()))


def test_whole_sentences_only_where_wanted():
    def in_full(share):
        return [
            "full" in question
            for example in samples(1000, in_full=share)
            for (question, _), kind in zip(
                turns_of(example), example.turn_kinds, strict=True
            )
            if kind != "nobody"
        ]

    assert not any(in_full(0))
    some = in_full(0.3)
    assert 0.25 < sum(some) / len(some) < 0.35


@pytest.mark.parametrize("type_", tables.FORMS)
@pytest.mark.parametrize("coloured", (0, 1))
def test_a_drill_is_four_alike_facts(type_, coloured):
    rng = random.Random(3)
    seen = set()
    for number in range(300):
        split = ("train", "test")[number % 2]
        example = make_drill(rng, (type_,), KINDS, coloured, split)
        world = World(split_story(example)[0])
        assert len(world.triples) == 4 and len(world.noise) == 1
        assert {split_of(*triple) for triple in world.triples} == {split}
        if type_ not in ("count", "at"):
            assert all(map(bool, world.colours.values())) == coloured
        assert 4 <= len(example.turn_kinds) <= 6
        seen.update(example.turn_kinds)
        for question, answer in turns_of(example):
            assert world.answers(question) == {answer}, example
    able = {kind for kind in KINDS if type_ in tables.NEEDS[kind]}
    if not coloured:
        able -= {"colour"}
    assert seen == able | {"nobody"}


@pytest.mark.parametrize("kinds", ((), ("where",), ("moved",)))
def test_a_drill_without_enough_questions_says_so(kinds):
    with pytest.raises(ValueError, match="too few questions .* 'at' facts"):
        make_drill(random.Random(0), ("at",), kinds, 0)
    with pytest.raises(ValueError, match="too few questions"):
        make_drill(random.Random(0), ("put",), ("colour",), 0)


@pytest.mark.parametrize(
    ("facts", "options", "message"),
    (
        (0, {}, "1 to 6 facts, not 0"),
        (7, {}, "1 to 6 facts, not 7"),
        (3, {"distractors": -1}, "-1 idle sentence"),
        (3, {"turns": 0}, "no 0 question"),
        (1, {"turns": 500}, "1 fact.* don't give 500 questions"),
        (3, {"split": "dev"}, "no split 'dev'"),
        (1, {"kind": "moved"}, "no 'moved' question on 1 fact"),
    ),
)
def test_no_story_is_drawn_for_ever(facts, options, message):
    with pytest.raises(ValueError, match=message):
        make_example(random.Random(0), facts, **options)


def test_a_drill_asks_only_what_it_is_told_to():
    rng = random.Random(4)
    kinds = set()
    for _ in range(200):
        example = make_drill(rng, ("put", "give"), ("where", "given"), 0)
        assert len(set(example.turn_kinds)) == 1
        kinds.update(example.turn_kinds)
    assert kinds == {"where", "given"}


def test_only_a_move_needs_two_facts():
    assert set(KINDS) - set(corpus.kinds_for(1)) == {"moved", "before_move"}
    assert all(corpus.kinds_for(facts) == KINDS for facts in range(2, 7))


def test_all_kinds_occur_by_themselves():
    for facts in range(1, 7):
        rng = random.Random(facts)
        seen = {make_example(rng, facts).kind for _ in range(400)}
        assert seen == set(corpus.kinds_for(facts))


def test_a_story_holds_as_many_distractors_as_asked_for():
    nouns = {
        *tables.OBJECTS,
        *tables.PLURALS.values(),
        *(place for _, place in tables.PLACES),
    }
    for count in (0, 1, 7, 40, 200):
        for example in samples(60, distractors=count):
            world = World(split_story(example)[0])
            assert len(world.noise) == count
            assert world.sentences == count + example.facts
            words = set(re.findall("[a-z]+", " ".join(world.noise)))
            assert not words & nouns
            if count <= 40:
                assert len(set(world.noise)) == count
    for example in samples(600):
        assert len(World(split_story(example)[0]).noise) <= example.facts


@pytest.mark.parametrize("turns", range(1, 6))
def test_a_conversation_has_so_many_turns(turns):
    for example in samples(120, turns=turns):
        roles = [message["role"] for message in example.messages]
        assert roles == ["user", "assistant"] * turns
        assert len(example.turn_kinds) == turns
        questions = [question for question, _ in turns_of(example)]
        assert len(set(questions)) == turns
        assert all(re.fullmatch(r"[^.?]+\?", q) for q in questions)


def test_only_the_last_answer_is_thought_about():
    for example in samples(300, think=False):
        assert all(len(message) == 2 for message in example.messages)
    for example in samples(600, think=True):
        *before, last = example.messages
        assert all(len(message) == 2 for message in before)
        thought, story = last["reasoning_content"], split_story(example)[0]
        if example.kind == "nobody":
            assert re.fullmatch(
                r"No [a-z]+ is in the story\.|"
                r"[A-Z][a-z]+ is not in the story\.",
                thought,
            )
        else:
            assert all(
                part.strip(".") + "." in story for part in thought.split(". ")
            )
            question = turns_of(example)[-1][0]
            if not question.startswith("What did"):  # may name the mover
                reply = {last["content"]}
                assert (
                    example.kind == "who_put"
                    or World(thought).answers(question) == reply
                )
    thinking = sum(
        "reasoning_content" in example.messages[-1]
        for example in samples(4000)
    )
    assert 0.12 < thinking / 4000 < 0.18


def test_the_articles_are_right():
    for example in samples(2000):
        story = split_story(example)[0]
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", story)
    rng = random.Random(0)
    for _ in range(2000):
        text = make_narrative(rng)
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text)


def test_a_narrative_is_a_short_day_of_one_person():
    rng = random.Random(0)
    lengths = set()
    for _ in range(2000):
        text = make_narrative(rng)
        assert re.fullmatch(r"(?:[A-Z][A-Za-z, ]+\. ?)+", text)
        lengths.add(text.count("."))
        hero = next(
            word
            for word in re.findall("[A-Z][a-z]+", text)
            if word in tables.NAMES
        )
        wrong = "he" if hero in tables.SHE else "she"
        assert wrong not in re.findall("[a-z]+", text.lower())
        first, last = text.split(". ")[0], text.split(". ")[-1]
        assert "morning" in first
        assert re.search("evening|night|dark|end of the day", last)
    assert lengths == set(range(3, 9))
