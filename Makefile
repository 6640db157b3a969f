# Every target works on its own on a machine with Python 3.11+, make and a C compiler.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The first interpreter that is new enough; `make install PYTHON=...` chooses another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Test processes: one for each core; `make test JOBS=0` runs all in one, which a debugger needs.
JOBS ?= auto
# The layers whose every branch a test must take.
PURE := src/heliograph/wire/*,src/heliograph/crypto/*
PURE_TESTS := tests/wire tests/crypto tests/vectors

.PHONY: help install test lint format types demo bench fuzz faults lock clean docs

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv with the heliograph command from the lock file

$(STAMP): pyproject.toml requirements/dev.lock src/heliograph/__init__.py
	@if [ -z "$(PYTHON)" ]; then \
		echo "Heliograph needs Python 3.11 or newer, and none was found: install it," \
			"or name one with 'make $(or $(MAKECMDGOALS),install) PYTHON=/path/to/python3'." >&2; exit 1; fi
	@$(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

test: install ## Run all tests, and require full branch coverage of wire and crypto
	$(BIN)/pytest -n $(JOBS) $(PURE_TESTS) --cov=heliograph.wire --cov=heliograph.crypto --cov-report=
	$(BIN)/coverage report --include='$(PURE)' --fail-under=100
	$(BIN)/pytest -n $(JOBS) --dist loadgroup $(PURE_TESTS:%=--ignore=%)

lint: install ## Check style, formatting and the layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

format: install ## Fix style and formatting in place
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: install ## Check types
	$(BIN)/mypy

demo: install ## Show the system at work on this machine
	$(BIN)/heliograph demo

bench: install ## Run the benchmarks and print ratios
	$(BIN)/python -m bench

docs: install ## Build the documentation as a static site in build/site
	$(BIN)/python docs/pictures.py --check && $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

fuzz: install ## Feed every parser at least a million inputs
	$(BIN)/python -m bench.fuzz --each 1000000

faults: install ## Kill processes under load, hundreds of rounds (the tests do a few)
	HELIOGRAPH_KILL_ROUNDS=200 HELIOGRAPH_FAULT_ROUNDS=300 HELIOGRAPH_PIPELINE_KILL_ROUNDS=50 \
		HELIOGRAPH_PIPELINE_CLUSTER=1 $(BIN)/pytest tests/faults tests/pipeline/test_kill.py \
		tests/pipeline/test_cluster.py -s --timeout 7200

# Pins are kept where they still fit; `make lock LOCK_ARGS=--upgrade` moves them all.
COMPILE = $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' $(LOCK_ARGS)

lock: install ## Regenerate the lock files from pyproject.toml
	$(COMPILE) --output-file requirements/runtime.lock
	$(COMPILE) --group dev --all-extras --constraint requirements/runtime.lock --output-file requirements/dev.lock

clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist .coverage .coverage.* htmlcov
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
