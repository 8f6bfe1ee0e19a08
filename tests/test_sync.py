# python -m pytest tests/test_sync.py
"""The chapters show the package word for word, each public name once."""

import subprocess
import sys

import nbformat
import pytest
import sync
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

MODULE = '''\
"""A module of the package."""

import functools

EPS = 1e-6


@functools.cache
def double(x):
    """Twice x."""
    return 2 * x  # twice


class Table:
    size = 3


def _helper():
    pass
'''
DOUBLE = """\
# qwen/part.py: double
@functools.cache
def double(x):
    \"\"\"Twice x.\"\"\"
    return 2 * x  # twice"""
TABLE = "# qwen/part.py: Table\nclass Table:\n    size = 3"
EPS = "# qwen/part.py: EPS\nEPS = 1e-6"


def chapter(root, name, *sources):
    """Write a chapter: a title, then code cells that have been run."""
    nb = new_notebook(cells=[new_markdown_cell("# Title", id="title")])
    for i, source in enumerate(sources):
        output = nbformat.v4.new_output("stream", text="kept\n")
        cell = new_code_cell(source, id=f"code-{i}", outputs=[output])
        nb.cells.append(cell)
    nbformat.write(nb, root / "book" / name)


def listed(root, *names):
    (root / "book" / "not_yet.txt").write_text("# a list\n" + "\n".join(names))


@pytest.fixture
def tree(tmp_path):
    """A book of one module and one chapter, in sync."""
    for folder in ("book", "qwen", "kernels"):
        (tmp_path / folder).mkdir()
    (tmp_path / "qwen" / "part.py").write_text(MODULE)
    (tmp_path / "qwen" / "bench.py").write_text("def tool():\n    pass\n")
    (tmp_path / "_config.yml").write_text('repository:\n  url: ""\n')
    listed(tmp_path)
    chapter(tmp_path, "01_part.ipynb", "import functools", DOUBLE, TABLE, EPS)
    assert sync.sync(tmp_path, write=True) == []
    assert sync.sync(tmp_path) == []
    # The cells were right, so they are as they were.
    sources = [cell.source for cell in read(tmp_path).cells]
    assert sources[3:] == [DOUBLE, TABLE, EPS]
    return tmp_path


def read(root, name="01_part.ipynb"):
    return nbformat.read(root / "book" / name, as_version=4)


def test_real_chapters_are_in_sync():
    command = [sys.executable, sync.ROOT / "book" / "sync.py", "--check"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("name", ["double", "Table", "EPS"])
def test_changed_cell_is_found_and_repaired(tree, name):
    nb = read(tree)
    first_line = f"# qwen/part.py: {name}\n"
    (cell,) = [c for c in nb.cells if c.source.startswith(first_line)]
    good = cell.source
    cell.source = good + "  # edited"
    path = tree / "book" / "01_part.ipynb"
    nbformat.write(nb, path)
    assert sync.sync(tree) == [
        f"01_part.ipynb: qwen/part.py: {name} differs from the package"
    ]
    assert sync.sync(tree, write=True) == []
    repaired = read(tree)
    assert good in [c.source for c in repaired.cells]
    assert [c.id for c in repaired.cells] == [c.id for c in nb.cells]
    assert all(
        c.outputs[0].text == "kept\n"
        for c in repaired.cells
        if c.id.startswith("code")
    )
    # A second rewriting changes nothing.
    first = path.read_bytes()
    sync.sync(tree, write=True)
    assert path.read_bytes() == first


def test_changed_package_is_found(tree):
    module = tree / "qwen" / "part.py"
    module.write_text(MODULE.replace("2 * x", "x + x"))
    (problem,) = sync.sync(tree)
    assert "double differs" in problem
    assert sync.sync(tree, write=True) == []
    assert "return x + x  # twice" in read(tree).cells[3].source


def test_bootstrap_and_metadata_are_written(tree):
    path = tree / "book" / "01_part.ipynb"
    nb = read(tree)
    assert nb.cells[1].id == "bootstrap"
    assert nb.cells[1].metadata == {"tags": ["remove-cell"]}
    assert nb.metadata == sync.METADATA
    nb.cells.append(nb.cells.pop(1))
    nb.metadata["widgets"] = {}
    nbformat.write(nb, path)
    assert len(sync.sync(tree)) == 2
    assert sync.sync(tree, write=True) == []
    assert read(tree).cells[1].id == "bootstrap"
    assert read(tree).metadata == sync.METADATA


def test_address_goes_into_the_bootstrap(tree):
    address = "https://example.org/book.git"
    (tree / "_config.yml").write_text(f"repository:\n  url: {address}\n")
    (problem,) = sync.sync(tree)
    assert "bootstrap" in problem
    sync.sync(tree, write=True)
    assert f'_find_book("{address}")' in read(tree).cells[1].source


def test_cells_without_ids_get_stable_ones(tree):
    nb = new_notebook(nbformat_minor=4)
    nb.cells = [new_markdown_cell("# Two")]
    del nb.cells[0]["id"]
    path = tree / "book" / "02_old.ipynb"
    texts = []
    for _ in range(2):
        nbformat.write(nb, path)
        sync.sync(tree, write=True)
        texts.append(path.read_bytes())
    assert texts[0] == texts[1]
    assert [c.id for c in read(tree, "02_old.ipynb").cells][0] == "cell-0"


def problems_of(root):
    """The problems that a rewriting leaves."""
    return sync.sync(root, write=True)


def test_unknown_definition_is_found(tree):
    chapter(tree, "02_more.ipynb", "# qwen/part.py: gone\ngone = 1")
    assert problems_of(tree) == [
        "02_more.ipynb: qwen/part.py: gone does not exist"
    ]


def test_misspelt_first_line_is_found(tree):
    chapter(tree, "02_more.ipynb", "# qwen/part.py double\nx = 1")
    (problem,) = problems_of(tree)
    assert "can't read" in problem


def test_missing_public_name_is_found(tree):
    (tree / "kernels" / "tile.py").write_text("def run():\n    pass\n")
    assert problems_of(tree) == ["kernels/tile.py: run is shown in no chapter"]


def test_name_shown_twice_is_found(tree):
    chapter(tree, "02_more.ipynb", TABLE)
    (problem,) = problems_of(tree)
    assert problem == (
        "02_more.ipynb: qwen/part.py: Table is new in 01_part.ipynb already"
    )
    chapter(tree, "02_more.ipynb", TABLE.replace("Table\n", "Table (again)\n"))
    assert problems_of(tree) == []


def test_again_comes_after_new(tree):
    chapter(tree, "00_map.ipynb", TABLE.replace("Table\n", "Table (again)\n"))
    (problem,) = problems_of(tree)
    assert problem.endswith("Table was not shown before")


def test_not_yet_only_shrinks(tree):
    module = tree / "qwen" / "part.py"
    module.write_text(MODULE + "\n\ndef later():\n    pass\n")
    assert problems_of(tree) == ["qwen/part.py: later is shown in no chapter"]
    listed(tree, "qwen/part.py: later")
    assert problems_of(tree) == []
    # Shown: it must leave the list. Private, or gone: too.
    chapter(tree, "02_more.ipynb", "# qwen/part.py: later\n")
    (problem,) = problems_of(tree)
    assert problem.startswith("not_yet.txt: qwen/part.py: later is in 02_")
    for name in ("qwen/part.py: _helper", "qwen/gone.py: gone"):
        listed(tree, name)
        (problem,) = problems_of(tree)
        assert problem == f"not_yet.txt: {name} is no public name"
