# python -m pytest tests/test_colab.py
"""A notebook opened in Colab: alone in a folder, the repository elsewhere."""

import os
import shutil
import subprocess
import sys

import nbformat
import pytest
import sync
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

# Stands before the notebook's first cell, as Colab's own module does.
COLAB = """\
import sys, types
sys.modules["google"] = types.ModuleType("google")
sys.modules["google.colab"] = types.ModuleType("google.colab")"""


# Whose commit it is, on a machine where git was told nothing.
WHO = ["-c", "user.name=test", "-c", "user.email=test@example.org"]


def git(*words, cwd):
    run = subprocess.run(
        ["git", *WHO, *words],
        cwd=cwd,
        check=True,
        capture_output=True,
        text=True,
    )
    return run.stdout


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A repository that holds the files of this one as they are now."""
    origin = tmp_path_factory.mktemp("origin")
    listed = git("ls-files", "-co", "--exclude-standard", cwd=sync.ROOT)
    for name in listed.splitlines():
        if (sync.ROOT / name).is_file():
            (origin / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(sync.ROOT / name, origin / name)
    git("init", "--quiet", cwd=origin)
    git("add", "--all", cwd=origin)
    git("commit", "--quiet", "--message", "all", cwd=origin)
    return origin.as_uri()


def run_alone(nb, folder, monkeypatch, colab=True):
    """Run a notebook in an empty folder with no way to this checkout."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if colab:
        nb.cells.insert(0, nbformat.v4.new_code_cell(COLAB, id="colab"))
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(
        nb, timeout=300, kernel_name="python3", resources=resources
    ).execute()


def freeze():
    command = [sys.executable, "-m", "pip", "freeze", "--all"]
    return subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize("path", sync.chapters(), ids=lambda path: path.name)
def test_chapter_runs_alone(path, address, tmp_path, monkeypatch):
    nb = nbformat.read(path, as_version=4)
    first = next(c for c in nb.cells if c.cell_type == "code")
    assert first.id == "bootstrap"
    first.source = sync.bootstrap(address)
    nbformat.write(nb, tmp_path / path.name)
    before = freeze()
    # Where the package comes from, whatever the chapter does besides.
    nb.cells.append(nbformat.v4.new_code_cell("import qwen; qwen.__file__"))
    run_alone(nb, tmp_path, monkeypatch)
    clone = str(tmp_path / "two-memories" / "qwen")
    assert clone in nb.cells[-1].outputs[0].data["text/plain"]
    assert freeze() == before


def bootstrap_only(address):
    cells = [nbformat.v4.new_code_cell(sync.bootstrap(address))]
    return nbformat.v4.new_notebook(cells=cells)


def test_second_start_uses_the_clone(address, tmp_path, monkeypatch):
    run_alone(bootstrap_only(address), tmp_path, monkeypatch)
    assert (tmp_path / "two-memories" / "qwen").is_dir()
    # The runtime restarts; the folder is still there, the network is not.
    gone = (tmp_path / "gone").as_uri()
    run_alone(bootstrap_only(gone), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "colab, address", [(True, ""), (False, "https://example.org/book.git")]
)
def test_message_when_there_is_no_package(
    colab, address, tmp_path, monkeypatch
):
    nb = bootstrap_only(address)
    with pytest.raises(CellExecutionError) as error:
        run_alone(nb, tmp_path, monkeypatch, colab)
    assert error.value.ename == "ImportError"
    assert error.value.evalue.startswith("The package `qwen` is not here.")
    assert os.listdir(tmp_path) == []
