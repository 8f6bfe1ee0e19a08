# Run: python -m pytest tests/test_blank.py
"""The closed book: an emptied chapter fails, the right code passes."""

import shutil

import pytest
from blank import ROOT, blank, chapters, emptied, find, grade

NUMBERS = [int(path.name[:2]) for path in chapters()]

MODULE = '''\
LIMIT = 3


def keep(x):
    return x


def write(x, y=LIMIT):
    """Say what it does.

    In two paragraphs.
    """

    def inner(z):
        return z

    return inner(x) + y


class Part:
    """A part."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    @property
    def double(self):
        return 2 * self.size
'''

EMPTY = '''\
LIMIT = 3


def keep(x):
    return x


def write(x, y=LIMIT):
    """Say what it does.

    In two paragraphs.
    """
    raise NotImplementedError


class Part:
    """A part."""

    def __init__(self, size):
        raise NotImplementedError

    @property
    def double(self):
        raise NotImplementedError
'''


def test_bodies_go_and_signatures_and_docstrings_stay():
    assert emptied(MODULE, {"write", "Part"}) == EMPTY
    assert emptied(MODULE, set()) == MODULE


@pytest.mark.slow
@pytest.mark.parametrize("chapter", NUMBERS)
def test_empty_is_red_and_the_right_code_is_green(chapter, tmp_path):
    folder = tmp_path / "copy"
    modules = blank(chapter, folder)
    assert modules
    assert "NotImplementedError" in grade(chapter, folder)
    for module in modules:
        shutil.copy(ROOT / module, folder / module)
    assert grade(chapter, folder) == ""


def test_a_readers_work_is_never_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(SystemExit, match="may hold your work"):
        blank(NUMBERS[0], tmp_path / "mine")


def test_a_slip_in_the_code_is_named_with_its_line(tmp_path):
    folder = tmp_path / "copy"
    modules = blank(NUMBERS[0], folder)
    path = folder / next(iter(modules))
    path.write_text("import torch\n\ndef load(name, 1):\n", "utf-8")
    assert grade(NUMBERS[0], folder).startswith(f"{path}, line 3: ")


def test_an_unknown_chapter_is_named():
    with pytest.raises(SystemExit, match="no chapter 99"):
        find(99)
