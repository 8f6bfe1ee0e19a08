# make book     build the book from its stored outputs
# make test     lint, all tests, and every chapter run and compared
# make check    the fast part of it: lint and the tests not marked slow
# make sync     rewrite the chapters' package cells from the package
# make execute  run every chapter and store its outputs
# make blank CH=8   a copy of the book without chapter 8's code, to write again
# make grade CH=8   let chapter 8's checks judge what was written there
# make clean    remove the environment and the pages

SHELL := bash
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python

CHAPTERS := $(sort $(wildcard book/*.ipynb))
PAGES := index book/index book/notation book/references $(CHAPTERS:.ipynb=)

# The cores run different test files, so each test gets one thread. A file
# stays on one worker (loadfile): a notebook is a file of cells in order.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(RUN) -m pytest \
    -n logical --dist loadfile

.PHONY: book test check lint sync execute blank grade clean

# Only a warning that stops the build is seen, hence -W; --all rebuilds pages
# whose warnings an earlier build has printed already.
book: $(VENV)/book.stamp
	$(VENV)/bin/jupyter-book build . --all -W -n --keep-going
	@for page in $(PAGES); do \
	    test -s _build/html/$$page.html || \
	    { echo "The build made no _build/html/$$page.html" >&2; exit 1; }; \
	done
	@echo "The book: $(CURDIR)/_build/html/index.html"

lint: $(VENV)/test.stamp
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

check: lint
	$(PYTEST) -m "not slow"

# One pytest run for tests and notebooks: a core that is done with the one
# takes the other, and the summary at the end counts both. The chapters find
# the package by themselves, as they do for a reader: no PYTHONPATH here.
test: lint
	$(PYTEST) --nbval --nbval-current-env --nbval-cell-timeout=120 \
	    tests $(CHAPTERS)

sync: $(VENV)/book.stamp
	$(RUN) book/sync.py

execute: $(VENV)/book.stamp
	$(RUN) book/execute.py

blank: $(VENV)/book.stamp
	@test -n "$(CH)" || { echo "Which chapter? make blank CH=8" >&2; exit 1; }
	@$(RUN) book/blank.py $(CH)

grade: $(VENV)/book.stamp
	@test -n "$(CH)" || { echo "Which chapter? make grade CH=8" >&2; exit 1; }
	@$(RUN) book/blank.py --grade $(CH)

clean:
	rm -rf $(VENV) _build .pytest_cache .ruff_cache .hypothesis

# The environment. pip is the last thing that venv puts there, so it stands
# for a whole one; the stamps are as old as the last installation.
$(VENV)/book.stamp: requirements.txt | $(VENV)/bin/pip
	$(RUN) -m pip install -r requirements.txt
	touch $@

$(VENV)/test.stamp: tests/requirements.txt requirements.txt | $(VENV)/bin/pip
	$(RUN) -m pip install -r tests/requirements.txt
	touch $(VENV)/book.stamp $@

$(VENV)/bin/pip:
	@command -v "$(PYTHON)" >/dev/null || \
	{ echo "There is no $(PYTHON). Python 3.11, 3.12 or 3.13 is needed;" \
	    "name one with, say, make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; \
	    sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	{ echo "$(PYTHON) is $$("$(PYTHON)" --version 2>&1). Python 3.11, 3.12" \
	    "or 3.13 is needed; name one with, say," \
	    "make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || \
	{ echo "$(PYTHON) can't make an environment: its venv or ensurepip" \
	    "is missing. Install it (on Debian and Ubuntu the package" \
	    "python3-venv), or name another Python with, say," \
	    "make PYTHON=python3.12" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
