# make setup   the environment, .venv, with the pinned versions
# make demo    compare four variants on real images and write report/index.html
# make test    the whole test suite
# make bench   every benchmark, quickly, with records in runs/bench/; then the slow tests
# make lint    ruff and mypy
#
# A CPU build of torch from another package index: make setup TORCH_INDEX=<its URL>
# Another Python: make setup PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: setup demo test bench lint

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

# All of them run, whichever misses a bar or fails: those are named at the end.
bench: setup
	mkdir -p runs/bench; missed=""; \
	for script in benchmarks/[!_]*.py; do \
		echo "$$script"; \
		$(BIN)/python $$script --quick --json runs/bench/$$(basename $$script .py).jsonl || missed="$$missed $$script"; \
	done; \
	$(BIN)/python -m pytest -m slow || missed="$$missed slow-tests"; \
	if [ -n "$$missed" ]; then echo "failed, or missed a bar:$$missed"; exit 1; fi

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
