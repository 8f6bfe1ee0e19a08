"""Hold the chapters and the package together.

    python book/sync.py            rewrite the chapters from the package
    python book/sync.py --check    change nothing, name every difference

The package is the source. A notebook cell whose first line is, say,

    # qwen/rope.py: apply_rope

shows that definition (a function, a class or an assignment at the top level
of the module), and the rest of the cell is its exact text. A later chapter
that comes back to a definition ends that line with ` (again)`.

Every public function and class is shown as new exactly once, except those
listed in book/not_yet.txt, which chapters that are still to be written will
show. That list only shrinks: a name that is shown, or gone, must leave it.

The first code cell of every notebook, which finds the package, and the
notebook's metadata are written from the templates below.
"""

import argparse
import ast
import copy
import json
import re
import sys
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).resolve().parent.parent

# Tools: no chapter shows them. (Neither is qwen/tiny/ looked at.)
EXEMPT = {
    "qwen/__main__.py",
    "qwen/bench.py",
    "qwen/bench_models.py",
    "qwen/bench_times.py",
    "kernels/aot.py",
    "kernels/bench.py",
}

HEADER = re.compile(r"# ((?:qwen|kernels)/\w+\.py): (\w+)( \(again\))?")

# Colab opens a notebook without its repository, so there this cell fetches a
# clone. It never installs a package: Colab's own torch is the right one.
BOOTSTRAP = """\
# Find the book's package `qwen`: here, installed, or (in Colab) in a clone.
import importlib.util
import pathlib
import subprocess
import sys


def _find_book(repository):
    here = pathlib.Path.cwd()
    clone = here / "two-memories"
    for folder in (here, *here.parents, clone):
        if (folder / "qwen" / "__init__.py").is_file():
            return folder
    if importlib.util.find_spec("qwen"):
        return None
    if "google.colab" not in sys.modules or not repository:
        raise ImportError(
            "The package `qwen` is not here. Run this notebook in the "
            "folder `book` of a clone of the book's repository."
        )
    command = ["git", "clone", "--quiet", "--depth", "1"]
    subprocess.run([*command, repository, str(clone)], check=True)
    return clone


_book = _find_book(REPOSITORY)
if _book:
    sys.path.insert(0, str(_book))"""

METADATA = {
    "accelerator": "GPU",
    "colab": {"gpuType": "T4"},
    "kernelspec": {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}


def chapters(root=ROOT):
    """The notebooks, in the order of reading."""
    return sorted((root / "book").glob("*.ipynb"))


def repository(root=ROOT):
    """The address of the book's repository, "" while it has none."""
    config = yaml.safe_load((root / "_config.yml").read_text("utf-8"))
    return config["repository"]["url"] or ""


def bootstrap(address):
    """The text of the bootstrap cell."""
    return BOOTSTRAP.replace("REPOSITORY", json.dumps(address))


def definitions(path):
    """Map each name that a module defines to (its text, is it public)."""
    text = path.read_text("utf-8")
    lines = text.split("\n")
    found = {}
    for node in ast.parse(text).body:
        first, public = node.lineno, False
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
            public = not node.name.startswith("_")
            first = min([first, *(d.lineno for d in node.decorator_list)])
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = getattr(node, "targets", None) or [node.target]
            names = [t.id for t in targets if isinstance(t, ast.Name)]
        else:
            continue
        for name in names:
            found[name] = "\n".join(lines[first - 1 : node.end_lineno]), public
    return found


def package(root=ROOT):
    """Map "qwen/rope.py: apply_rope" to (text, is it public), for all."""
    found = {}
    for folder in ("qwen", "kernels"):
        for path in sorted((root / folder).glob("*.py")):
            module = path.relative_to(root).as_posix()
            for name, (text, public) in definitions(path).items():
                public = public and module not in EXEMPT
                found[f"{module}: {name}"] = text, public
    return found


def shown_by(nb):
    """Yield (cell, "qwen/rope.py: apply_rope", again) for package cells."""
    for cell in nb.cells:
        match = HEADER.fullmatch(cell.source.split("\n")[0])
        if cell.cell_type == "code" and match:
            module, name, again = match.groups()
            yield cell, f"{module}: {name}", bool(again)


def place_bootstrap(nb, address):
    """Make the bootstrap cell the first code cell, keeping its outputs."""
    cell = nbformat.v4.new_code_cell(id="bootstrap")
    for old in nb.cells:
        if old.get("id") == "bootstrap":
            cell = old
    cell.source = bootstrap(address)
    cell.metadata = nbformat.from_dict({"tags": ["remove-cell"]})
    rest = [c for c in nb.cells if c is not cell]
    kinds = [c.cell_type for c in rest] + ["code"]
    rest.insert(kinds.index("code"), cell)
    nb.cells = rest


def update(nb, texts, address):
    """Bring a notebook up to date, in place; return what differed."""
    changes = []
    for cell, name, _ in shown_by(nb):
        if name not in texts:
            continue
        wanted = cell.source.split("\n")[0] + "\n" + texts[name][0]
        if cell.source != wanted:
            cell.source = wanted
            changes.append(f"{name} differs from the package")
    before = copy.deepcopy(nb.cells)
    place_bootstrap(nb, address)
    if nb.cells != before:
        changes.append("the bootstrap cell differs from the template")
    if nb.metadata != METADATA:
        nb.metadata = nbformat.from_dict(copy.deepcopy(METADATA))
        changes.append("the metadata differs from the template")
    if any("id" not in cell for cell in nb.cells):
        # Ids by position, not random ones: a second conversion of the same
        # source then gives the same file.
        nb.nbformat_minor = 5
        for i, cell in enumerate(nb.cells):
            cell.setdefault("id", f"cell-{i}")
        changes.append("cells without an id")
    return changes


def book_problems(notebooks, texts, not_yet):
    """What no rewriting repairs: names missing, unknown or shown twice."""
    problems, first = [], {}
    for chapter, nb in notebooks.items():
        for cell in nb.cells:
            line = cell.source.split("\n")[0]
            if cell.cell_type == "code" and not HEADER.fullmatch(line):
                if re.match(r"#\s*(qwen|kernels)/", line):
                    problems.append(f"{chapter}: can't read `{line}`")
        for _, name, again in shown_by(nb):
            if name not in texts:
                problems.append(f"{chapter}: {name} does not exist")
            elif again and name not in first and name not in not_yet:
                problems.append(f"{chapter}: {name} was not shown before")
            elif not again and name in first:
                problems.append(
                    f"{chapter}: {name} is new in {first[name]} already"
                )
            elif not again:
                first[name] = chapter
    for name, (_, public) in texts.items():
        if public and name not in first and name not in not_yet:
            problems.append(f"{name} is shown in no chapter")
    for name in sorted(not_yet):
        if name in first:
            problems.append(f"not_yet.txt: {name} is in {first[name]} now")
        elif name not in texts or not texts[name][1]:
            problems.append(f"not_yet.txt: {name} is no public name")
    return problems


def sync(root=ROOT, write=False):
    """Compare all chapters with the package; return the differences.

    With `write`, repair what can be repaired and return what is left.
    """
    texts = package(root)
    address = repository(root)
    listed = (root / "book" / "not_yet.txt").read_text("utf-8").split("\n")
    not_yet = {line for line in listed if line and line[0] != "#"}
    problems, notebooks = [], {}
    for path in chapters(root):
        nb = nbformat.read(path, as_version=4)
        changes = update(nb, texts, address)
        notebooks[path.name] = nb
        if not write:
            problems += [f"{path.name}: {change}" for change in changes]
        elif changes:
            nbformat.write(nb, path)
            print(f"{path.name}: rewritten ({'; '.join(changes)})")
    return problems + book_problems(notebooks, texts, not_yet)


def main():
    parser = argparse.ArgumentParser(
        description="Hold the chapters and the package together."
    )
    parser.add_argument("--check", action="store_true")
    problems = sync(write=not parser.parse_args().check)
    print("\n".join(problems) or "The chapters and the package agree.")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
