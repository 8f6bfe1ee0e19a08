# python -m pytest tests/test_readme.py
"""What the README says is so: its files, its commands, its code."""

import importlib
import re
import subprocess

import nbformat
import pytest
import sync

from qwen.__main__ import parse, run

TEXT = (sync.ROOT / "README.md").read_text(encoding="utf-8")
MAINS = {"qwen": "qwen.__main__"}


def blocks(kind):
    """The code blocks of one language, without their fences."""
    return re.findall(rf"(?ms)^```{kind}\n(.*?)^```$", TEXT)


def tree():
    """The paths of the file tree; a folder ends in a slash.

    A line is a name, at least two spaces, and what it is; two spaces in
    front of it for each folder that it is in.
    """
    paths, folders = [], []
    for line in blocks("text")[-1].splitlines():
        spaces, name, _ = re.fullmatch(r"( *)(\S+)  +(\S.*)", line).groups()
        depth = len(spaces) // 2
        assert len(spaces) % 2 == 0 and depth <= len(folders), line
        folders[depth:] = [name] if name.endswith("/") else []
        paths.append("".join([*folders[:depth], name]))
    return paths


def files():
    """The files of the checkout, but not what git ignores."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    git = subprocess.run(
        command, cwd=sync.ROOT, capture_output=True, text=True
    )
    if git.returncode:
        pytest.skip("this is no git checkout")
    return {f for f in git.stdout.splitlines() if (sync.ROOT / f).exists()}


def test_the_tree_lists_every_file_once():
    paths = tree()
    assert len(paths) == len(set(paths))
    leaves = {
        path
        for path in paths
        if not any(p != path and p.startswith(path) for p in paths)
    }
    shown = set()
    for file in files():
        above = [leaf for leaf in leaves if leaf[-1] == "/"]
        shown.add(next((f for f in above if file.startswith(f)), file))
    unlisted, gone = sorted(shown - leaves), sorted(leaves - shown)
    assert unlisted == []
    assert gone == []


def test_the_tree_is_the_end():
    assert TEXT.endswith(blocks("text")[-1] + "```\n")


def test_make_knows_the_targets():
    makefile = (sync.ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", TEXT, re.M))
    known = set(re.findall(r"^([a-z]+):", makefile, re.M))
    assert {"book", "test", "check", "sync", "execute"} <= named <= known


def test_commands_know_their_options(capsys, monkeypatch):
    lines = re.findall(r"python -m (qwen\S*) ?(.*)", TEXT)
    helps = {}
    for module in {module for module, _ in lines}:
        main = importlib.import_module(MAINS.get(module, module)).main
        monkeypatch.setattr("sys.argv", [module, "--help"])
        with pytest.raises(SystemExit):
            main()
        helps[module] = re.findall(r"--[a-z-]+", capsys.readouterr().out)
    assert "--temperature" in helps["qwen"] and len(helps) == 5
    for module, options in lines:
        assert set(re.findall(r"--[a-z-]+", options)) <= {*helps[module]}


def test_scripts_exist():
    for name in re.findall(r"python ([\w/]+\.py)", TEXT):
        assert (sync.ROOT / name).is_file(), name


def test_the_first_command_answers_so(capsys, monkeypatch):
    monkeypatch.delenv("QWEN_MODEL", raising=False)
    (shown,) = blocks("console")
    command, answer = shown.split("\n", 1)
    prompt = re.fullmatch(r'\$ python -m qwen "(.*)"', command)[1]
    run(parse([prompt]))
    assert capsys.readouterr().out == answer


def test_python_blocks_run(capsys, monkeypatch):
    monkeypatch.delenv("QWEN_MODEL", raising=False)
    names = {}
    for block in blocks("python"):
        exec(block, names)
    assert "GatedDeltaNet" in names
    first, second = capsys.readouterr().out.splitlines()
    assert first == blocks("console")[0].splitlines()[1]
    assert second.startswith(f"{len(names['ids'])} tokens, ")


def test_the_table_of_speed_is_that_of_chapter_10():
    path = sync.ROOT / "book" / "10_two_memories.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    (cell,) = [c for c in cells if "## What the large shape" in c.source]
    here = TEXT.partition("### Speed\n")[2].partition("\n### ")[0]

    def rows(text):
        return [x for x in text.splitlines() if x.startswith("|")]

    assert len(rows(here)) > 10 and rows(here) == rows(cell.source)
