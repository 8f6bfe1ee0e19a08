"""Plain tales without a question: a day in the life of one person."""

from qwen.tiny.story import (
    Story,
    capital,
    draw,
    draw_put,
    fresh,
    pick,
    split_of,
    with_article,
)
from qwen.tiny.words import COLOURS, NAMES, PLACES, ROOMS, SHE

# Narrative. {Who} and {who} are the hero's name or, where the sentence
# before was about the hero, the pronoun; {she} is always the pronoun.
MORNING = (
    "One {weather} morning {hero} woke up early.",
    "One {weather} morning {hero} walked to the {spot}.",
    "In the morning {hero} walked to the {spot}.",
    "It was a {weather} morning, and {hero} was {mood}.",
    "It was morning, and {hero} was {at}.",
    "Early in the morning {hero} went to the {spot}.",
)
FIND = (
    (
        "{Who} found {a_thing} {p1}.",
        "{Who} saw {a_thing} {p1} and picked it up.",
        "{Who} looked {p1} and found {a_thing}.",
    ),
    (
        "{Who} looked at the {o} and smiled.",
        "{Who} liked the {o} very much.",
        "It was very nice, and {she} liked it.",
        "It was small, and {she} held it in one hand.",
    ),
)
KEEP = (
    (
        "{Who} carried the {o} to the {spot2}.",
        "Then {who} took it and walked on.",
        "{Who} carried it all day.",
    ),
    (
        "Then {who} put the {o} {p2}.",
        "Later {who} put it {p2}.",
        "At last {who} left the {o} {p2}.",
    ),
)
GIVE = (
    (
        "Then {who} met {friend}.",
        "On the way {who} met {friend}.",
        "{friend} came and said hello.",
    ),
    ("{Who} gave the {o} to {friend}.", "{Who} handed {friend} the {o}."),
    ("{friend} was happy and smiled.", "{friend} laughed and said thank you."),
)
MEET = (
    (
        "{Who} went to the {spot2} and met {friend}.",
        "Soon {who} met {friend}.",
        "{Who} saw {friend} and said hello.",
    ),
    (
        "{friend} was {mood2}.",
        "{friend} smiled.",
        "{friend} told a long story.",
    ),
    (
        "They talked and laughed.",
        "They ran and played together.",
        "They walked to the river together.",
        "They ate some bread together.",
    ),
)
SMALL = (
    "{Who} looked at the sky.",
    "{Who} sat down and sang a song.",
    "{Who} was hungry and ate some bread.",
    "{Who} ran and laughed.",
    "{Who} played with a little cat.",
    "The wind blew, and {who} felt cold.",
    "A dog made a noise, but {who} was not afraid.",
    "The birds sang.",
    "{Who} walked by the river.",
    "{Who} waited for a long time.",
    "At noon the sun was warm.",
    "Soon it was noon.",
)
EVENING = (
    "In the evening {who} walked home.",
    "In the evening {who} was tired.",
    "When it was dark, {who} went home.",
    "That night {who} slept well.",
    "At the end of the day {who} was {mood3}.",
    "In the evening {who} looked at the moon and smiled.",
)
WEATHER = tuple("warm cold sunny windy rainy quiet fine".split())
MOOD = tuple("happy sad tired hungry".split())


def narrative_words(rng):
    """The people, things and places of one narrative, all of train."""
    story = Story(rng, "train")
    story.used.update(ROOMS)  # a thing is found in a smaller place
    found = draw(story, draw_put)
    story.used.difference_update(ROOMS)
    hero, thing = found["n"], found["o"]
    pronoun = "she" if hero in SHE else "he"
    while True:
        kept, friend = fresh(story, PLACES), fresh(story, NAMES)
        at, spot2 = fresh(story, ROOMS), fresh(story, ROOMS)
        triples = (
            (hero, thing, kept[1]),
            (hero, thing, friend),
            (hero, "is", at[1]),
        )
        if (
            kept not in ROOMS
            and at != spot2
            and all(split_of(*three) == "train" for three in triples)
        ):
            break
    full = thing if rng.random() < 0.3 else f"{pick(rng, COLOURS)} {thing}"
    return {
        "hero": hero,
        "friend": friend,
        "she": pronoun,
        "o": thing,
        "a_thing": with_article(full),
        "p1": found["p"],
        "p2": "{} the {}".format(*kept),
        "spot": at[1],
        "spot2": spot2[1],
        "at": "{} the {}".format(*at),
        "weather": pick(rng, WEATHER),
        "mood": pick(rng, MOOD),
        "mood2": pick(rng, MOOD),
        "mood3": pick(rng, ("happy", "tired")),
    }


def make_narrative(rng):
    """Three to eight sentences on a day of one or two people."""
    words = narrative_words(rng)
    room = rng.randint(1, 6)
    arcs = [FIND + (KEEP if rng.random() < 0.5 else GIVE)]
    if room > 3 or rng.random() < 0.5:
        arcs.insert(rng.randint(0, 1), (SMALL,))
    if arcs[-1][-1] is not GIVE[-1] and rng.random() < 0.6:
        arcs.insert(rng.randint(0, len(arcs)), MEET)
    forms = [MORNING]
    forms += [form for arc in arcs for form in arc][:room]
    forms.append(EVENING)
    text = []
    about_hero = False
    for choices in forms:
        form = pick(rng, choices)
        who = words["she"] if about_hero else words["hero"]
        text.append(form.format(who=who, Who=capital(who), **words))
        about_hero = "{friend}" not in form and any(
            slot in form for slot in ("{hero}", "{who}", "{Who}", "{she}")
        )
    return " ".join(text)
