"""What all tests share: a line of progress per notebook, fixtures."""

import pytest


class NotebookProgress:
    """Print a line when a worker is done with a notebook.

    nbval counts cells, and dots don't say which chapter is running. Workers
    report to the main process, and each runs the cells of one file in a row,
    so a notebook is done when its worker's next cell is another file's.
    """

    def __init__(self, config):
        self.config = config
        self.running = {}

    def finish(self, worker):
        path, cells, failed, seconds = self.running.pop(worker)
        result = f"{failed} FAILED" if failed else "passed"
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        terminal.write_line(
            f"\n{path}: {cells} cells, {result}, {seconds:.1f} s"
        )

    def pytest_runtest_logreport(self, report):
        worker = getattr(report, "worker_id", "main")
        path = report.nodeid.split("::")[0]
        if worker in self.running and self.running[worker][0] != path:
            self.finish(worker)
        if path.endswith(".ipynb"):
            new = [path, 0, 0, 0.0]
            notebook = self.running.setdefault(worker, new)
            notebook[1] += report.when == "call"
            notebook[2] += report.failed
            notebook[3] += report.duration

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self):
        for worker in list(self.running):
            self.finish(worker)


def pytest_configure(config):
    # Workers have no terminal to print on.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(NotebookProgress(config))


@pytest.fixture(scope="module")
def model():
    """A small model with random weights."""
    from toy import toy_model  # torch, which not every run needs

    return toy_model()


@pytest.fixture(scope="module")
def memory_is_dirty():
    """Fresh memory is full of sevens, for a module that asks for it."""
    from toy import dirty_memory

    with dirty_memory():
        yield
