# The habits of the house. `make` alone explains them.
.DEFAULT_GOAL := help
PYTHON ?= $(firstword $(foreach v,python3.11 python3.12 python3.13 python3.14 python3,$(shell command -v $(v) 2>/dev/null)))
UV := uv==0.13.9
BIN := .venv/bin
READY := .venv/.ready
# uv brings certificates of its own; a company's machine trusts others as well.
export UV_SYSTEM_CERTS ?= true

.PHONY: help demo dev ui test lint snapshot format simulate simulate-billing crash-test fuzz mutate bench bench-billing lock clean

help:  ## What can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# One environment, from the lock, with hashes. Bytecode is compiled, or every run's process would pay for it.
$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python found: install Python 3.11 or newer, or say make PYTHON=/path/to/python."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V). Say make PYTHON=/path/to/python."; exit 1; }
	@echo "Installing into .venv (half a minute, once) ..."
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV)
	@VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --compile-bytecode --require-hashes -r requirements.lock
	@VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .
	@touch $(READY)

demo: $(READY)  ## Meter a sample day on an embedded stack, and check the bill to the last unit
	@$(BIN)/metering-dagster demo

dev: $(READY)  ## Dagster with its schedules running, on an embedded stack where usage keeps arriving
	@$(BIN)/metering-dagster dev

ui: $(READY)  ## Dagster on what the demo left: its runs, tables, ledger and settings
	@$(BIN)/metering-dagster demo --ui

test: $(READY)  ## Rules, stores, Dagster in one process: no server, no Java
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not services"

test-services: $(READY)  ## Processes that are killed, servers, end to end; scripts/fetch_dynamodb_local.sh fetches one
	@$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m services

test-all: test test-services  ## Both

lint: $(READY)  ## ruff, mypy, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

snapshot: $(READY)  ## Renew the snapshot of what Dagster shows; read its diff
	@$(BIN)/python -W ignore -m tests.definitions_snapshot

format: $(READY)  ## Put the code into the house's form
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

simulate: SEEDS ?= 100
simulate: FIRST ?= 1
simulate: $(READY)  ## Metering by simulation: worlds with faults everywhere, and a judge; SEEDS=1000 FIRST=5001
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST)

simulate-billing: SEEDS ?= 500
simulate-billing: $(READY)  ## Billing by simulation on MariaDB, with random ingests; SEEDS=500
	@$(BIN)/python -m tests.billing_changes.simulation --seeds $(SEEDS)

KILLS ?= 100
crash-test: $(READY)  ## Kill workers at random moments while usage is written, then judge the bill; KILLS=100 SEED=1
	@$(BIN)/python -W ignore -m tests.crash --kills $(KILLS) $(if $(SEED),--seed $(SEED))

FUZZ ?= 50
fuzz: $(READY)  ## Hostile input at every entry, so many times as much as `make test` tries; FUZZ=50
	@FUZZ=$(FUZZ) $(BIN)/python -m pytest -q -n auto --dist worksteal tests/hostile

RULES ?= metering_dagster.*
MUTANTS ?= 2
mutate: $(READY)  ## What no test of the rules notices when it is changed; RULES='metering_dagster.core.hours.*'
	@$(BIN)/mutmut run --max-children $(MUTANTS) '$(RULES)'
	@$(BIN)/python -m scripts.mutation_score --survivors

bench: $(READY)  ## Requests and CPU for each raw row; what a run of an hour costs
	@$(BIN)/python -m benchmarks.rows
	@$(BIN)/python -m benchmarks.runs

bench-billing: $(READY)  ## Polls and reconciles among 5 million facts, against the window again
	@$(BIN)/python -m benchmarks.billing

lock: $(READY)  ## Renew requirements.lock from pyproject.toml
	@$(BIN)/uv pip compile pyproject.toml --extra local --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-strip-extras --no-header --quiet --upgrade -o requirements.lock

clean:  ## Remove what was installed and kept
	@rm -rf .venv .dagster_home .metering .tmp_dagster_home_*
