# Run: python -m pytest tests/test_notation.py
"""The page of notation says what the package and the chapters say."""

import re

import nbformat
import pytest
from notation import GROUPS, PAGE, page
from sync import ROOT, chapters

ROWS = [row for _, rows in GROUPS for row in rows]
PACKAGE = "\n".join(
    path.read_text("utf-8")
    for folder in ("qwen", "kernels")
    for path in ROOT.glob(f"{folder}/*.py")
)
TEXTS = {
    int(path.name[:2]): "\n".join(
        cell.source for cell in nbformat.read(path, as_version=4).cells
    )
    for path in chapters()
}


def test_the_page_is_the_list():
    assert PAGE.read_text("utf-8") == page(), "run python book/notation.py"


@pytest.mark.parametrize("row", ROWS, ids=[row[3] for row in ROWS])
def test_each_name_is_in_the_package_and_its_first_chapter(row):
    symbol, _, _, code, chapter = row
    for name in code.split(", "):
        assert re.search(rf"\b{name}\b", PACKAGE)
        if chapter in TEXTS:
            assert re.search(rf"\b{name}\b", TEXTS[chapter])
    if symbol and chapter in TEXTS:
        # in a formula, or as the code's own letter
        plain = symbol.strip("$")
        assert plain in TEXTS[chapter] or code in TEXTS[chapter]


def test_no_symbol_stands_twice():
    symbols = [row[0] for row in ROWS if row[0]]
    assert len(symbols) == len(set(symbols))
