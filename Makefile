# Two commands for a fresh clone: `make fit` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CONFIG ?= configs/fedobp_fashion10k.yaml
SHELL  := bash

.DEFAULT_GOAL := help
.PHONY: help setup fit test test-slurm test-browser test-faults test-mutants bench docs lint format clean

help:            ## show the commands
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 16

setup: $(VENV)/.installed  ## make .venv and install the package with its test tools

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is too old: Python 3.11 or newer is needed; name one with make setup PYTHON=python3.12"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV), about 6 GB with PyTorch's CUDA libraries: 2 to 6 minutes"
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@set -o pipefail; PYTHONWARNINGS="ignore:Editable installation" \
	  $(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]' | $(BIN)/python tools/show_progress.py
	@touch $@

fit: setup       ## train the main job on embedded data: CONFIG=configs/….yaml, ARGS='--seed 7'
	$(BIN)/pfl-fit --config $(CONFIG) $(ARGS)

test: setup      ## run the whole test suite: ARGS='-k fedobp'
	$(BIN)/python -m pytest $(ARGS)

test-slurm: setup  ## jobs on a real two-node SLURM (root: installs Debian's packages)
	PFL_TEST_SLURM=1 $(BIN)/python -m pytest tests/slurm -rs -n 0 $(ARGS)

test-browser: setup  ## pages of pfl-report in headless Chromium (root: installs it)
	PFL_TEST_BROWSER=1 $(BIN)/python -m pytest tests/browser -rs -n 0 $(ARGS)

test-faults: setup  ## kill 50 runs, damage 200 files, throw 500 random mistakes: ARGS='--seed 1'
	$(BIN)/python tools/faults/kill_runs.py $(ARGS)
	$(BIN)/python tools/faults/damage_files.py $(ARGS)
	$(BIN)/python tools/faults/throw_mistakes.py $(ARGS)

test-mutants: setup  ## would the tests notice? 500 small errors in the algorithms: ARGS='--budget 50'
	$(BIN)/python tools/mutants $(ARGS)

bench: setup     ## measure speed and memory into docs/performance.md: ARGS=--quick to try
	$(BIN)/python tools/bench $(ARGS)

docs: setup      ## build the documentation site in site/, with warnings as errors
	@$(BIN)/python -m mkdocs --version >/dev/null 2>&1 || PYTHONWARNINGS="ignore:Editable installation" $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

lint: setup      ## ruff, mypy, and the direction of imports between rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup    ## let ruff rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:           ## remove the environment and caches (runs and data stay)
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache
