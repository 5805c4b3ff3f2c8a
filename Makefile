PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup train test test-all lint bench lock
.PRECIOUS: .venvs/%/.ready

help:  ## what each target does
	@grep -E '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/.ready: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "embodied needs Python 3.11 or newer and $(PYTHON) is $$($(PYTHON) -V 2>&1): call make PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(VENV)/.ready  ## create .venv with every pinned dependency

train: setup  ## train lift_cube from nothing (ARGS="seed=1" adds overrides)
	$(BIN)/embodied train experiment=lift_fast $(ARGS)

test: setup  ## the tests, under 10 minutes on two cores; files side by side in JOBS processes
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --durations=20 $(ARGS)

test-all: setup $(patsubst peers/%.txt,peer-%,$(wildcard peers/*.txt))  ## the tests, the long ones and those with other projects' clients
	$(BIN)/python -m pytest -m "" $(ARGS)

lint: setup  ## ruff, mypy, and openers of docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/prose.py

bench: setup  ## every benchmark in tools/bench, one after the other
	for script in tools/bench/*.py; do $(BIN)/python $$script || exit 1; done

lock: setup  ## pin the newest versions that pyproject.toml admits
	$(BIN)/pip-compile --quiet --strip-extras --no-annotate --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
		--allow-unsafe --all-extras --output-file requirements.lock --upgrade-package torch==2.13.0 pyproject.toml
	sed -i -e '/^embodied-rl @/d' -e '/^\#/d' -e '/^$$/d' -e '/^pip==/d' -e 's/^torch==.*/torch==2.13.0/' requirements.lock

.SECONDEXPANSION:
.venvs/%/.ready: peers/%.txt $$(wildcard peers/$$*.no-deps) pyproject.toml
	$(PYTHON) -m venv .venvs/$*
	.venvs/$*/bin/pip install --quiet -r $<
	$(if $(wildcard peers/$*.no-deps),.venvs/$*/bin/pip install --quiet --no-deps -r peers/$*.no-deps)
	.venvs/$*/bin/pip install --quiet --no-deps --editable .
	@touch $@

peer-%: .venvs/%/.ready  ## another project's code in its own environment, with this package: make peer-<name>
	@:
