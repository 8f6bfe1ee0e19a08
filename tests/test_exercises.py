# Run: python -m pytest tests/test_exercises.py
"""Every exercise has a folded solution, and its own check accepts it."""

import ast
import re

import nbformat
import pytest
from nbclient import NotebookClient
from sync import chapters

TURN = "# your turn"


def statement(source):
    """The top-level statement that a reader replaces: (name, its lines)."""
    lines = source.split("\n")
    for node in ast.parse(source).body:
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        if TURN in text:
            name = getattr(node, "name", None) or node.targets[0].id
            return name, (node.lineno - 1, node.end_lineno)
    return None


def solve(nb):
    """Put each folded solution in its exercise's place; their names."""
    folded = [
        code
        for cell in nb.cells
        if cell.cell_type == "markdown" and "<details>" in cell.source
        for code in re.findall(r"```python\n(.*?)```", cell.source, re.S)
    ]
    solutions = {}
    for code in folded:
        for node in ast.parse(code).body:
            if isinstance(node, ast.FunctionDef):
                solutions[node.name] = code
            elif isinstance(node, ast.Assign):
                solutions[node.targets[0].id] = code
    names = []
    for cell in nb.cells:
        found = cell.cell_type == "code" and TURN in cell.source
        if found:
            name, (start, end) = statement(cell.source)
            lines = cell.source.split("\n")
            lines[start:end] = [solutions[name].rstrip()]
            cell.source = "\n".join(lines)
            names.append(name)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
def test_the_folded_solutions_pass_the_checks(path):
    nb = nbformat.read(path, as_version=4)
    names = solve(nb)
    assert 2 <= len(names)
    place = {"metadata": {"path": str(path.parent)}}
    NotebookClient(nb, timeout=600, resources=place).execute()
    said = "".join(
        output.get("text", "")
        for cell in nb.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert " yet." not in said
    assert len(re.findall(r"Exercise \d+ is right", said)) >= len(names)


def test_an_unsolved_chapter_says_so():
    for path in chapters():
        nb = nbformat.read(path, as_version=4)
        said = str([c.get("outputs") for c in nb.cells])
        wanted = sum(TURN in c.source for c in nb.cells)
        assert len(re.findall(r"Exercise \d+ is not \w+ yet", said)) >= wanted


def test_a_wrong_solution_is_noticed(tmp_path):
    text = "```python\ndef double(x):\n    return x\n```"
    nb = nbformat.v4.new_notebook()
    nb.cells = [
        nbformat.v4.new_code_cell("def double(x):\n    return 0  # your turn"),
        nbformat.v4.new_code_cell("assert double(2) == 4"),
        nbformat.v4.new_markdown_cell(f"<details>\n\n{text}\n</details>"),
    ]
    assert solve(nb) == ["double"]
    assert nb.cells[0].source == "def double(x):\n    return x"
    with pytest.raises(Exception, match="AssertionError"):
        NotebookClient(nb, timeout=60).execute()
