# Every target works on its own on a machine with Python 3.11+, make and a C compiler.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The first interpreter that is new enough; `make install PYTHON=...` chooses another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Test processes: more than cores, because most tests wait for timers, disks and other processes.
# `make test JOBS=0` runs all in one, which a debugger needs.
CORES = $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
JOBS ?= $(shell expr $(CORES) + 2)
# How often a failed test is run again before it counts; CI allows one, and lists it as RERUN.
RERUNS ?= 0
# The layers whose every branch a test must take.
PURE := src/heliograph/wire/*,src/heliograph/crypto/*
PURE_TESTS := tests/wire tests/crypto tests/vectors

# Tests whose result depends on who runs them: files and their modes, processes, PostgreSQL.
USER_TESTS := tests/runtime tests/db tests/cli tests/doctor/test_examine.py tests/docs/test_incidents.py \
	tests/ntf/test_router.py tests/faults/test_ntf_faults.py tests/faults/test_network_cut.py

# Compiled modules are kept even where the environment says otherwise, as images often do: hundreds of
# processes that tests start would compile them again, and so would each test process its tests.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install test stacks privileged lint format types demo bench fuzz attack faults workers lock clean docs

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv with the heliograph command from the lock file

$(STAMP): pyproject.toml requirements/dev.lock src/heliograph/__init__.py
	@if [ -z "$(PYTHON)" ]; then \
		echo "Heliograph needs Python 3.11 or newer, and none was found: install it," \
			"or name one with 'make $(or $(MAKECMDGOALS),install) PYTHON=/path/to/python3'." >&2; exit 1; fi
	@$(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		-r requirements/dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

test: install ## Run all tests, and require full branch coverage of wire and crypto
	$(BIN)/pytest -n $(JOBS) $(PURE_TESTS) --cov=heliograph.wire --cov=heliograph.crypto --cov-report=
	$(BIN)/coverage report --include='$(PURE)' --fail-under=100
	$(BIN)/pytest -n $(JOBS) --dist loadgroup --reruns $(RERUNS) -r aR $(PURE_TESTS:%=--ignore=%)

stacks: install ## Run the routers as processes on asyncio's own event loop, without uvloop
	HELIOGRAPH_NET=asyncio $(BIN)/pytest -n $(JOBS) --reruns $(RERUNS) -r aR tests/cli/test_smp.py tests/cli/ntf tests/e2e/test_previews.py

privileged: install ## Run the tests whose result depends on the user; CI runs them as root, too
	$(BIN)/pytest -n $(JOBS) --dist loadgroup --reruns $(RERUNS) -r aR $(USER_TESTS)

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
	$(BIN)/python docs/pictures.py --check && NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

fuzz: install ## Search with fresh seeds: every property, then a million inputs for every parser
	HYPOTHESIS_PROFILE=fuzz $(BIN)/pytest -n $(JOBS) -m hypothesis --timeout 7200
	$(BIN)/python -m bench.fuzz --each 1000000

# A network of its own where the kernel allows one: nothing of an attack leaves this machine.
ALONE = $$(unshare -rn true 2>/dev/null && echo unshare -rn)

attack: install ## Attack the routers beside honest neighbours, at full size (the tests do a little)
	HELIOGRAPH_ATTACK=large $(ALONE) sh -c 'ip link set lo up 2>/dev/null; exec "$$@"' - \
		$(BIN)/pytest tests/attacks -s --timeout 1800

faults: install ## Kill processes under load, hundreds of rounds (the tests do a few)
	HELIOGRAPH_KILL_ROUNDS=200 HELIOGRAPH_FAULT_ROUNDS=300 HELIOGRAPH_PIPELINE_KILL_ROUNDS=50 \
		HELIOGRAPH_HAND_OVER_ROUNDS=200 HELIOGRAPH_HAND_OVER_WORLDS=8 HELIOGRAPH_PLANTED=large \
		$(BIN)/pytest tests/faults tests/pipeline/test_kill.py tests/pipeline/test_cluster.py \
		tests/pipeline/decisions/test_planted_world.py -s --timeout 7200

# Scenarios, processes and pipeline worlds whose notification router can be several processes.
WORKERS_TESTS := tests/interop/test_ntf_scenarios.py tests/e2e tests/faults \
	tests/agent/notifications/test_kill.py tests/pipeline/test_world.py tests/pipeline/test_kill_world.py

workers: install ## Run the suites with notification routers of three processes each, on PostgreSQL
	HELIOGRAPH_WORKERS=3 $(BIN)/pytest -n $(JOBS) --dist loadgroup $(WORKERS_TESTS)

# Pins are kept where they still fit; `make lock LOCK_ARGS=--upgrade` moves them all.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' $(LOCK_ARGS)

lock: install ## Regenerate the lock files from pyproject.toml
	$(COMPILE) --group build --output-file requirements/build.lock
	$(COMPILE) pyproject.toml --extra journal --extra postgresql \
		--output-file requirements/runtime.lock
	$(COMPILE) pyproject.toml --extra pipeline --constraint requirements/runtime.lock \
		--output-file requirements/pipeline.lock
	$(COMPILE) pyproject.toml --group dev --all-extras --constraint requirements/build.lock \
		--constraint requirements/runtime.lock --constraint requirements/pipeline.lock \
		--output-file requirements/dev.lock

clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist .coverage .coverage.* htmlcov
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
