# make demo runs the main job, make test passes the tests; each sets up what it needs by itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help chaos setup chromium demo lab test check bench shots clean

help:
	@echo "make demo   run notebooks/01-quickstart.ipynb on a real cluster and print what its tasks say"
	@echo "make lab    open it in JupyterLab"
	@echo "make test   pass the tests"
	@echo "make check  lint, format and types"
	@echo "make chaos  hundreds of random faults, from a seed; thousands of programs with and without tfmagic"
	@echo "make bench  speed and memory, beside ipyparallel"
	@echo "make shots  take the screenshots of the docs anew, from the real thing"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tfmagic needs Python 3.11 or newer: $$($(PYTHON) --version)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "no venv module: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/python scripts/demo.py

lab: $(STAMP)
	$(BIN)/jupyter lab --notebook-dir notebooks notebooks/01-quickstart.ipynb

chromium:
	@scripts/install-chromium

# two at once; a file's tests stay together, so that they share what is costly to start; the slow files, which
# come first by name, begin first
test: $(STAMP) chromium
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# CHAOS_SEED=7 make chaos CHAOS_STEPS=1000; then every docstring example and many generated programs
chaos: export CHAOS_STEPS ?= 300
chaos: export SAME ?= all
chaos: $(STAMP)
	$(BIN)/python -m pytest tests/chaos
	$(BIN)/python -m pytest tests/same/test_docstrings.py tests/same/test_generated.py

check: $(STAMP)
	$(BIN)/ruff check tfmagic tests benchmarks scripts
	$(BIN)/ruff format --check tfmagic tests benchmarks scripts
	$(BIN)/mypy

bench: $(STAMP) chromium
	$(BIN)/python -m benchmarks

shots: $(STAMP) chromium
	$(BIN)/python scripts/shots.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache dist
