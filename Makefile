# Each target works alone on a machine with Python >= 3.11: the virtual environment is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
# Tests that start daemons mostly wait for them: two at a time, apart from those that compute.
DAEMON_TESTS := tests/swarm tests/wan
OTHER_TESTS := $(DAEMON_TESTS:%=--ignore=%) -n auto --maxprocesses=8
FAST_TESTS := $(OTHER_TESTS) --ignore=tests/sim

.PHONY: help install demo test check format lint types imports fast-tests bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    three peers train one model over an emulated ocean, one is killed and comes back"
	@echo "make test    every test"
	@echo "make check   lint, types, import rules, fast tests (all but simulated swarms and real daemons)"
	@echo "make bench   every benchmark, a summary table"
	@echo "make format  rewrite the code as 'make check' wants it"

install: $(INSTALLED)

# The stamp is newer than what it was made from, so a second run starts at once.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: $(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[data,examples,integrations,plot,dev]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/ciuic-peer demo

test: $(INSTALLED)
	$(BIN)/pytest $(OTHER_TESTS)
	$(BIN)/pytest $(DAEMON_TESTS) -n 2

check: lint types imports fast-tests

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

imports: $(INSTALLED)
	$(BIN)/lint-imports

fast-tests: $(INSTALLED)
	$(BIN)/pytest $(FAST_TESTS)

format: $(INSTALLED)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
