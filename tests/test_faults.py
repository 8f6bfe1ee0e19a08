# Run: python -m pytest tests/test_faults.py
"""No check that can't fail: one fault at a time, and the chapter goes red.

A fault is put into a copy of the package *and* into the chapter's cells that
show it, so that comparing the two finds nothing: what must notice it is the
chapter's own naive code, its numbers by hand, or its slower oracle.
"""

import shutil

import pytest
from blank import LEFT_OUT, ROOT, grade

# (chapter, module, right text, faulty text)
FAULTS = []


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults") / "book"
    shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "chapter, module, right, faulty",
    FAULTS,
    ids=[f"{c}-{m}-{n}" for n, (c, m, *_) in enumerate(FAULTS)],
)
def test_a_fault_makes_its_chapter_fail(copy, chapter, module, right, faulty):
    path = copy / module
    text = path.read_text("utf-8")
    assert text.count(right) == 1, "the fault no longer fits the module"
    try:
        path.write_text(text.replace(right, faulty), "utf-8")
        assert grade(chapter, copy), "the chapter did not notice"
    finally:
        path.write_text(text, "utf-8")


def test_there_are_enough_faults():
    assert len(FAULTS) >= 25
