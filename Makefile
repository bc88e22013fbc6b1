# The project's interface. `make` lists the targets; each sets up what it needs and is quick when nothing changed.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
NODE   := tests/conformance/node_modules
# How many files of tests `make test` runs side by side: more than there are cores, because many tests wait.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# Without its byte code the product is compiled at every start of a process: a node then starts in twice the time.
export PYTHONDONTWRITEBYTECODE :=

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help setup spark node-modules system-packages run cluster test quick conformance bench check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.stamp ## the Python environment in .venv

$(VENV)/.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Headwater needs Python 3.11 or newer, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Install one and name it: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PY) -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

spark: $(VENV)/.spark-stamp ## PySpark beside it, for the data pipeline and its tests

$(VENV)/.spark-stamp: $(VENV)/.stamp
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,spark]'
	@touch $@

node-modules: $(NODE)/.stamp ## the official suite and the reference server, for tests and benchmarks

$(NODE)/.stamp: tests/conformance/package.json tests/conformance/.npmrc
	@command -v npm >/dev/null || { echo "The conformance suite needs Node.js 20 or newer with npm." >&2; exit 1; }
	cd tests/conformance && npm install --no-progress --loglevel=error
	@touch $@

system-packages: ## what the tests need from the operating system
	@tools/system-packages.sh

run: setup ## serve on 127.0.0.1:4437 with data in ./headwater-data; more options in ARGS="..."
	$(VENV)/bin/headwater serve $(ARGS)

cluster: setup ## a cluster on this machine: three nodes, their log and an S3; more options in ARGS="..."
	$(VENV)/bin/headwater cluster dev $(ARGS)

test: setup spark node-modules system-packages check ## everything: checks, all tests, the official suite
	$(PY) -m tests.suite -n $(WORKERS) --dist loadfile --no-loadscope-reorder
	@$(MAKE) conformance
	@if [ -e build/unsteady-tests.txt ]; then cat build/unsteady-tests.txt; fi

quick: setup ## the quick tier of the tests; pytest options in ARGS="..."
	$(PY) -m pytest -m "not full and not soak" $(ARGS)

conformance: setup node-modules ## the official Durable Streams suite; with CLUSTER=1 on three nodes, for both logs
	@if [ -z "$(CLUSTER)" ]; then exec $(PY) tests/conformance/run.py $(ARGS); fi; \
	for log in jetstream objects; do \
		echo "three nodes with the log $$log"; $(PY) tests/conformance/run.py --cluster $$log $(ARGS) || exit 1; \
	done

bench: setup spark node-modules ## the benchmarks beside their peers; some of them with ONLY="B1 B4"
	$(PY) -m bench $(ONLY)

check: setup ## ruff, mypy, the import seams and the tidiness of the tree
	$(VENV)/bin/ruff check --quiet --output-format=concise .
	$(VENV)/bin/mypy --no-error-summary
	$(PY) -m pytest --quiet tests/test_house.py

clean: ## remove what setup and the tools made; a node's data stays
	rm -rf $(VENV) $(NODE) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
