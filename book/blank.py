"""The closed book: write a chapter's code again, and let the chapter judge.

    python book/blank.py 8          a copy of the book in blank/08, in which
                                    chapter 8's definitions are empty
    python book/blank.py --grade 8  run chapter 8 in that copy

A definition keeps its signature and its docstring. The chapter's cells show
what the copy's modules hold, so its own checks grade a reader's rewrite.
"""

import argparse
import ast
import shutil
import sys
from pathlib import Path

import nbformat
from execute import execute
from nbclient.exceptions import CellExecutionError
from sync import ROOT, chapters, shown_by, sync

LEFT_OUT = shutil.ignore_patterns(
    ".*", "_build", "blank", "__pycache__", "*.egg-info", "build", "runs"
)


def find(chapter, root=ROOT):
    """The notebook of a chapter's number."""
    for path in chapters(root):
        if int(path.name[:2]) == chapter:
            return path
    raise SystemExit(f"There is no chapter {chapter} in {root / 'book'}.")


def new_in(notebook):
    """[(module, name)]: the definitions that a chapter shows as new.

    Or all that it comes back to, where it has none of its own.
    """
    nb = nbformat.read(notebook, as_version=4)
    shown = [(name, again) for _, name, again in shown_by(nb)]
    names = [name for name, again in shown if not again]
    return [
        tuple(name.split(": "))
        for name in names or [name for name, _ in shown]
    ]


def emptied(text, names):
    """A module's text, the bodies of these functions and classes gone."""
    lines = text.split("\n")
    tree = ast.parse(text)
    found = [node for node in tree.body if getattr(node, "name", "") in names]
    functions = [
        node
        for top in found
        for node in ast.walk(top)
        if isinstance(node, ast.FunctionDef)
    ]
    inner = {
        child
        for node in functions
        for child in ast.walk(node)
        if child is not node
    }
    # from the last to the first, so that line numbers stay right
    functions = [node for node in functions if node not in inner]
    for node in sorted(functions, key=lambda n: -n.lineno):
        body = node.body
        documented = ast.get_docstring(node) is not None
        start = body[0].end_lineno if documented else body[0].lineno - 1
        indent = " " * body[0].col_offset
        lines[start : node.end_lineno] = [indent + "raise NotImplementedError"]
    return "\n".join(lines)


def blank(chapter, folder, root=ROOT):
    """Copy the book to `folder` without the code of one chapter."""
    notebook = find(chapter, root)
    if folder.exists():
        raise SystemExit(
            f"{folder} exists, and may hold your work. Remove it first."
        )
    shutil.copytree(root, folder, ignore=LEFT_OUT)
    modules = {}
    for module, name in new_in(notebook):
        modules.setdefault(module, set()).add(name)
    for module, names in modules.items():
        path = folder / module
        path.write_text(emptied(path.read_text("utf-8"), names), "utf-8")
    sync(folder, write=True)
    return {module: sorted(names) for module, names in modules.items()}


def grade(chapter, folder):
    """Run a chapter on the modules of its copy; return the error, or ""."""
    notebook = find(chapter, folder)
    modules = [*folder.glob("qwen/*.py"), *folder.glob("kernels/*.py")]
    for path in sorted(modules):
        try:
            ast.parse(path.read_text("utf-8"))
        except SyntaxError as error:
            return f"{path}, line {error.lineno}: {error.msg}"
    sync(folder, write=True)
    try:
        execute(notebook)
    except CellExecutionError as error:
        return f"{error.ename}: {error.evalue}\nin the cell\n{error}"
    return ""


def main():
    parser = argparse.ArgumentParser(description="The closed book.")
    parser.add_argument("chapter", type=int)
    parser.add_argument("--grade", action="store_true")
    options = parser.parse_args()
    folder = Path("blank") / f"{options.chapter:02d}"
    if not options.grade:
        for module, names in blank(options.chapter, folder).items():
            print(f"Write again, in {folder / module}: {', '.join(names)}")
        print(f"Then: make grade CH={options.chapter}")
        return
    if not folder.exists():
        raise SystemExit(f"First: make blank CH={options.chapter}")
    error = grade(options.chapter, folder)
    print(error or f"Chapter {options.chapter}: every check passes.")
    sys.exit(bool(error))


if __name__ == "__main__":
    main()
