"""Run notebooks from top to bottom and store their outputs in place.

    python book/execute.py                        every chapter, in order
    python book/execute.py book/00_start.ipynb    only the ones named

The metadata and the package's cells are brought up to date as well.
"""

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from sync import chapters, sync


def execute(path):
    nb = nbformat.read(path, as_version=4)
    NotebookClient(
        nb,
        timeout=600,
        kernel_name="python3",
        # Time stamps in every cell would change the file at every run, and
        # so would a stream that arrives in other pieces.
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    nbformat.write(nb, path)


def main():
    sync(write=True)
    for path in map(Path, sys.argv[1:] or chapters()):
        start = time.perf_counter()
        execute(path)
        print(f"{path.name}: {time.perf_counter() - start:.1f} s", flush=True)
    # The kernel writes its Python version into the metadata.
    problems = sync(write=True)
    print("\n".join(problems))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
