# make setup   the environment, .venv, with the pinned versions
# make demo    compare five variants on real images and write report/index.html
# make test    the test suite, without its slow tests
# make slow    the tests that are too slow for every change
# make bench   every benchmark, quickly, with records in runs/bench/; then the slow tests
# make lint    ruff and mypy
# make docs    the site, docs/_build/html: notebooks executed, warnings are errors, links checked
#
# A CPU build of torch from another package index: make setup TORCH_INDEX=<its URL>
# Another Python: make setup PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: setup demo test slow bench lint docs docs-links

setup: $(VENV)/ready

# torch comes first and by itself: the index that holds its CPU build holds nothing else.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(PIP) install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: setup
	$(BIN)/greenformers compare --data digits

# Two workers of one thread each: twice as fast as one of two, and no slower beside other work.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

slow: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist worksteal --timeout 900

# All of them run, whichever misses a bar or fails: those are named at the end.
bench: setup
	mkdir -p runs/bench; missed=""; \
	for script in benchmarks/[!_]*.py; do \
		echo "$$script"; \
		$(BIN)/python $$script --quick --json runs/bench/$$(basename $$script .py).jsonl || missed="$$missed $$script"; \
	done; \
	$(MAKE) slow || missed="$$missed slow-tests"; \
	if [ -n "$$missed" ]; then echo "failed, or missed a bar:$$missed"; exit 1; fi

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/ready-docs: $(VENV)/ready
	$(PIP) install --quiet --constraint constraints.txt --editable ".[dev,docs]"
	touch $@

# Links to other sites are looked at by docs-links, which needs a network.
docs: $(VENV)/ready-docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/_ext/check_links.py docs/_build/html

docs-links: $(VENV)/ready-docs
	$(BIN)/python -m sphinx -q -D nb_execution_mode=off -b linkcheck docs docs/_build/linkcheck
