# python -m pytest tests/test_make.py
"""make says plainly which Python it can't use, before it does anything."""

import os
import subprocess
import sys

import pytest
import sync

# A Python that runs the Makefile's checks with one thing changed.
FAKE = """\
#!{python} -S
import sys
if sys.argv[1] == "--version":
    print("Python {version}")
else:
    sys.version_info = tuple(map(int, "{version}".split(".")))
    sys.modules.update({hidden})
    exec(sys.argv[2])
"""


def make(folder, target, **settings):
    """Run make with `folder` first on the path and a .venv of its own."""
    settings["VENV"] = folder / "venv"
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    for name in ("PYTHON", "MAKEFLAGS", "MAKELEVEL"):
        env.pop(name, None)
    words = [f"{name}={value}" for name, value in settings.items()]
    run = subprocess.run(
        ["make", target, *words],
        cwd=sync.ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    assert run.returncode != 0
    assert not (folder / "venv").exists()
    return run.stderr


def fake(folder, version="3.12.1", hidden="{}"):
    path = folder / "python3"
    text = FAKE.format(python=sys.executable, version=version, hidden=hidden)
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize("target", ["book", "test", "check"])
@pytest.mark.parametrize("version", ["3.9.18", "3.10.13", "3.14.0"])
def test_wrong_version(tmp_path, target, version):
    fake(tmp_path, version)
    message = make(tmp_path, target)
    assert f"python3 is Python {version}" in message
    assert "make PYTHON=python3.12" in message


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_venv_missing(tmp_path, module):
    fake(tmp_path, hidden=f"{{{module!r}: None}}")
    message = make(tmp_path, "book")
    assert "venv or ensurepip is missing" in message
    assert "make PYTHON=python3.12" in message


def test_no_such_python(tmp_path):
    message = make(tmp_path, "book", PYTHON="python3.99")
    assert "There is no python3.99" in message
