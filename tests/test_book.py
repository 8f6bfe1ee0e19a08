# python -m pytest tests/test_book.py
"""What can be wrong with a stored notebook before anyone runs it."""

import re

import nbformat
import pytest
import sync
import yaml

CHAPTERS = sync.chapters()


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.name)
def nb(request):
    return nbformat.read(request.param, as_version=4)


def code(nb):
    return [c for c in nb.cells if c.cell_type == "code"]


def outputs(nb):
    return [(c, out) for c in code(nb) for out in c.outputs]


def headings(nb):
    """The level of every heading, in order, without those in code."""
    levels = []
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            prose = re.sub(r"(?ms)^(```|~~~).*?^\1", "", cell.source)
            levels += map(len, re.findall(r"(?m)^(#+) ", prose))
    return levels


def test_there_are_chapters():
    assert CHAPTERS


def test_every_chapter_is_in_the_contents():
    toc = yaml.safe_load((sync.ROOT / "_toc.yml").read_text())
    files = [c["file"] for part in toc["parts"] for c in part["chapters"]]
    listed = [file for file in files if re.match(r"book/\d", file)]
    assert listed == [f"book/{path.stem}" for path in CHAPTERS]


def test_colab_button_comes_with_the_address():
    config = yaml.safe_load((sync.ROOT / "_config.yml").read_text())
    button = config["launch_buttons"]["colab_url"]
    assert bool(button) == bool(config["repository"]["url"])


def test_one_title_first_and_no_level_skipped(nb):
    levels = headings(nb)
    assert nb.cells[0].cell_type == "markdown"
    assert nb.cells[0].source.startswith("# ")
    assert levels.count(1) == 1
    assert levels[0] == 1
    steps = [b - a for a, b in zip(levels, levels[1:])]
    assert max(steps, default=0) <= 1, levels


def test_kernel_name_and_no_widgets(nb):
    assert nb.metadata.kernelspec.name == "python3"
    assert "widgets" not in nb.metadata


def test_every_code_cell_was_run_in_order(nb):
    # nbval passes a notebook without outputs and without counts.
    counts = [c.execution_count for c in code(nb)]
    assert counts == list(range(1, len(counts) + 1))


def test_no_error_and_nothing_on_stderr(nb):
    for cell, out in outputs(nb):
        assert out.output_type != "error", cell.source
        assert out.get("name") != "stderr", out.text


def test_no_device_is_assumed(nb):
    for cell in code(nb):
        assert ".cuda(" not in cell.source
        assert not re.search(r"device\s*=\s*[\"']cuda", cell.source)
        assert not re.search(r"\.to\(\s*[\"']cuda", cell.source)


def test_nothing_is_installed(nb):
    for cell in nb.cells:
        assert not re.search(r"(?m)^\s*[!%].*\binstall\b", cell.source)
        assert not re.search(r"pip3?[\"', ]+install", cell.source)


def test_code_fits_the_page(nb):
    for cell in code(nb):
        for line in cell.source.split("\n"):
            assert len(line) <= 79, line


def test_every_picture_is_described(nb):
    # MyST-NB makes the alt text from this key of the cell's metadata.
    for cell, out in outputs(nb):
        if any(kind.startswith("image/") for kind in out.get("data", {})):
            image = cell.metadata.get("mystnb", {}).get("image", {})
            assert image.get("alt", "").strip(), cell.source


def test_outputs_name_no_place_on_a_machine(nb):
    places = r"(?<![\w.:/])/(home|root|Users|tmp|usr|opt|var|work|content)/"
    for _, out in outputs(nb):
        texts = [out.get("text", "")]
        for kind, data in out.get("data", {}).items():
            if kind.startswith("text/"):
                texts.append(data)
        for text in texts:
            assert not re.search(places, text), text
            assert not re.search(r"\b[A-Z]:\\", text), text
            assert not re.search(r" at 0x[0-9a-f]+", text), text
            assert "Warning:" not in text, text
