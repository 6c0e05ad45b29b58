# Every target sets up what it needs: a virtual environment in .venv with the exact versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two workers: more do not help on the two cores that the project is tested on.
WORKERS ?= 2

.PHONY: help demo test test-all lint format types bench clean

help:
	@echo "make demo | test | test-all | lint | format | types | bench | clean"

# torch comes first and alone, so that a build for this machine (CPU only, say) that pip knows of is taken.
$(READY): pyproject.toml constraints.txt src/attrim/kernels/compiled.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,demo]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/attrim demo

test: $(READY)
	$(BIN)/python -m pytest -q -n $(WORKERS)

test-all: $(READY)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "slow or not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/measure.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist
