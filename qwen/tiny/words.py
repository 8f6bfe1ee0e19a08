"""The words and sentence forms of the small model's stories."""

SHE = tuple(
    "Mia Anna Emma Lily Zoe Eva Nora Lucy Ella Ada Ruth Sara Julia Clara "
    "Maria Helen Jane Kate Laura Nina Olga Paula Rita Sofia Tina Vera "
    "Wendy Alice Betty Carla Dora Ellen Fiona Gina".split()
)
HE = tuple(
    "Tom Ben Max Leo Sam Jack Paul Peter Adam Luke Noah Oscar Hugo Felix "
    "David Daniel Eric Frank George Henry Ivan James Karl Lars Martin Nick "
    "Oliver Philip Robert Simon Tim Victor Walter Carlo".split()
)
NAMES = SHE + HE

OBJECTS = tuple(
    "key cup ball book hat spoon fork plate coin ring doll kite drum flute "
    "pen pencil stone shell feather apple pear lemon plum cake candle lamp "
    "clock watch comb brush glove sock shoe boot coat scarf button ribbon "
    "rope hammer nail map letter card stamp ticket mirror bottle bowl pot "
    "knife needle puzzle balloon flag fan umbrella egg nut carrot onion "
    "melon cherry mask crown towel belt mug".split()
)
ODD_PLURALS = {
    "watch": "watches",
    "brush": "brushes",
    "scarf": "scarves",
    "knife": "knives",
    "cherry": "cherries",
}
PLURALS = {one: ODD_PLURALS.get(one, one + "s") for one in OBJECTS}

# Places where a person may be, and places for objects only.
ROOMS = (
    [
        ("in", place)
        for place in "kitchen garden park barn school library shop attic "
        "cellar forest field hall tower castle cave church yard stable "
        "market".split()
    ]
    + [("on", place) for place in "beach hill farm porch bench".split()]
    + [("under", place) for place in "tree bridge".split()]
    + [("behind", place) for place in "fence gate shed".split()]
)
PLACES = tuple(
    ROOMS
    + [
        ("in", place)
        for place in "drawer box bag basket chest bucket cupboard closet "
        "pocket jar suitcase cart barrel oven sack trunk wagon boat".split()
    ]
    + [
        ("on", place)
        for place in "shelf table desk chair sofa rug stove piano stool log "
        "rock roof".split()
    ]
    + [
        ("under", place)
        for place in "bed blanket pillow bush stairs carpet".split()
    ]
    + [("behind", place) for place in "door curtain wall".split()]
)
ROOMS = tuple(ROOMS)

COLOURS = tuple(
    "red blue green yellow pink purple orange brown black "
    "white grey silver".split()
)
COUNTS = tuple("two three four five six seven eight nine".split())

KINDS = (
    "where",
    "who_put",
    "colour",
    "what_in",
    "count",
    "moved",
    "before_move",
    "given",
    "who_gave",
    "nobody",
    "yes_no",
    "person_place",
    "what_has",
    "who_has",
)

# The forms of each fact. {d} is "the red key" or "a red key", {o} "key".
FORMS = {
    "put": (
        "{n} put {d} {p}.",
        "{n} left {d} {p}.",
        "{n} hid {d} {p}.",
        "{n} placed {d} {p}.",
        "{n} took {d} and put it {p}.",
    ),
    "move": (
        "Then {n} put the {o} {p}.",
        "Later {n} put the {o} {p}.",
        "Later {n} took the {o} and put it {p}.",
        "Then {n} took the {o} and left it {p}.",
        "After that {n} found the {o} and hid it {p}.",
    ),
    "give": (
        "{n} gave {d} to {m}.",
        "{n} gave {m} {d}.",
        "{m} got {d} from {n}.",
        "{n} handed {d} to {m}.",
    ),
    "have": (
        "{n} has {d}.",
        "{n} bought {d}.",
        "{n} holds {d}.",
        "{n} carries {d}.",
    ),
    "count": (
        "{n} has {k} {os}.",
        "{n} bought {k} {os}.",
        "{n} found {k} {os}.",
    ),
    "at": (
        "{n} is {p}.",
        "{n} sat {p}.",
        "{n} waited {p}.",
        "{n} stood {p}.",
        "{n} played {p}.",
    ),
}

# The phrasings of each question. {d} is "red key" where a colour is known.
QUESTIONS = {
    "where": (
        "Where is the {o}?",
        "Where is the {d}?",
        "Where can I find the {o}?",
    ),
    "moved": (
        "Where is the {o}?",
        "Where is the {o} now?",
        "Where is the {d} now?",
    ),
    "before_move": (
        "Where was the {o} at first?",
        "Where was the {o} before?",
    ),
    "who_put": ("Who put the {o} {p}?", "Who left the {o} {p}?"),
    "colour": ("What colour is the {o}?", "What is the colour of the {o}?"),
    "what_in": (
        "What is {p}?",
        "What did {n} put {p}?",
        "What can I find {p}?",
    ),
    "count": ("How many {os} does {n} have?", "How many {os} has {n} got?"),
    "given": (
        "Who has the {o}?",
        "Who has the {o} now?",
        "Who had the {o} at the end?",
    ),
    "who_gave": ("Who gave the {o} to {m}?", "Who gave {m} the {o}?"),
    "who_has": ("Who has the {o}?", "Who has the {d}?", "Who had the {o}?"),
    "yes_no": ("Is the {o} {p}?", "Is the {d} {p}?"),
    "person_place": ("Where is {n}?", "Where can I find {n}?"),
    "what_has": ("What does {n} have?", "What has {n} got?"),
}

# The answers as whole sentences: what the question names comes first, what
# it asks for last.
IN_FULL = " Say it in full."
FULL = {
    "where": "The {o} is {p}.",
    "moved": "The {o} is {p}.",
    "before_move": "At first the {o} was {p}.",
    "who_put": "The {o} was put {p} by {n}.",
    "colour": "The {o} is {colour}.",
    "what_in": "{p} is the {full}.",
    "count": "{n} has {k} {os}.",
    "given": "The {o} went to {m}.",
    "who_gave": "The {o} came to {m} from {n}.",
    "who_has": "The {o} is in the hands of {n}.",
    "person_place": "{n} is {p}.",
    "what_has": "{n} has the {full}.",
    "yes_no": "The {o} is {p}.",
}
NOBODY = (
    ("Where is the {o}?", "The story does not say."),
    ("Where is the {o} now?", "The story does not say."),
    ("Where can I find the {o}?", "The story does not say."),
    ("Where is {n}?", "The story does not say."),
    ("Who has the {o}?", "Nobody had it."),
    ("Who had the {o}?", "Nobody had it."),
    ("Who had the {o} at the end?", "Nobody had it."),
)

# Which facts can answer which question. A nobody question needs none.
NEEDS = {
    "where": ("put",),
    "moved": ("move",),
    "before_move": ("move",),
    "who_put": ("put", "move"),
    "what_in": ("put", "move"),
    "yes_no": ("put", "move"),
    "colour": ("put", "move", "give", "have"),
    "count": ("count",),
    "given": ("give",),
    "who_gave": ("give",),
    "who_has": ("have",),
    "what_has": ("have", "give"),
    "person_place": ("at",),
    "nobody": (),
}
FILL = ("put",) * 5 + ("move",) * 3 + ("give",) * 2 + ("have", "count", "at")

# Sentences that do not matter. None holds an object or a place.
OPENINGS = tuple(
    f"It was a {kind} {time}."
    for kind in "warm cold sunny windy quiet long fine".split()
    for time in "morning day evening".split()
) + (
    "The sun was shining.",
    "It was raining.",
    "There was snow outside.",
    "The sky was clear.",
    "The moon was bright.",
    "The wind was strong.",
    "The air was cool.",
    "Summer was near.",
    "Winter was near.",
)
SOUNDS = (
    "Music played far away.",
    "Somebody was singing.",
    "The birds sang.",
    "A phone rang.",
    "A train went by.",
    "There was a loud noise.",
    "Nobody said a word.",
    "It was very quiet.",
    "Children were laughing.",
    "The clouds were white.",
    "The grass was wet.",
    "The leaves fell.",
    "Dinner smelled good.",
    "Time went by.",
    "It was a good day.",
    "The house was quiet.",
    "The road was long.",
    "The river was cold.",
)
ANIMALS = tuple(
    f"The {animal} {verb}."
    for animal in "cat dog horse cow duck goat hen mouse fox sheep".split()
    for verb in (
        "slept",
        "ran away",
        "was hungry",
        "was thirsty",
        "looked up",
        "made a noise",
    )
)
MOODS = tuple(
    "{n} " + rest
    for rest in (
        "was happy.",
        "was sad.",
        "was tired.",
        "was hungry.",
        "was late.",
        "laughed.",
        "smiled.",
        "sang a song.",
        "told a story.",
        "said hello.",
        "felt cold.",
        "liked the music.",
        "wanted to sleep.",
        "ate some bread.",
    )
)
