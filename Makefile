# make demo runs the main job, make test passes the tests; each sets up what it needs by itself.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MINOR := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
LOCK := $(wildcard requirements/$(MINOR).txt)

# one stamp for each kind of installation, made anew when its packages or the interpreter are others
DEMO := $(VENV)/.demo-$(MINOR)
LAB := $(VENV)/.lab-$(MINOR)
DEV := $(VENV)/.dev-$(MINOR)

.DEFAULT_GOAL := help
.PHONY: help chaos setup chromium demo lab test quick test-oldest check bench shots lock clean

help:
	@echo "make demo   run notebooks/01-quickstart.ipynb on a real cluster and print what its tasks say"
	@echo "make lab    open it in JupyterLab"
	@echo "make test   pass the tests"
	@echo "make quick  pass a part of them that takes about a minute"
	@echo "make test-oldest  pass that part with the oldest versions that pyproject.toml allows"
	@echo "make check  lint, format and types"
	@echo "make chaos  hundreds of random faults, from a seed; thousands of programs with and without tfmagic; soak tests"
	@echo "make bench  speed and memory, beside ipyparallel"
	@echo "make shots  take the screenshots of the docs anew, from the real thing"
	@echo "make lock   choose the versions that all of these install anew: requirements/"

$(DEMO): pyproject.toml $(LOCK)
	@PYTHON=$(PYTHON) scripts/install demo $(VENV)
	@touch $@

# what holds more serves what needs less
$(LAB): pyproject.toml $(LOCK)
	@PYTHON=$(PYTHON) scripts/install lab $(VENV)
	@touch $(DEMO) $@

$(DEV): pyproject.toml $(LOCK)
	@PYTHON=$(PYTHON) scripts/install dev $(VENV)
	@touch $(DEMO) $(LAB) $@

setup: $(DEV)

demo: $(DEMO)
	$(BIN)/python scripts/demo.py

lab: $(LAB)
	$(BIN)/jupyter lab --notebook-dir notebooks notebooks/01-quickstart.ipynb

chromium:
	@scripts/install-chromium

# the whole suite; then its quick part on Debian's own Python, if that is another version
test: $(DEV) chromium
	$(BIN)/python scripts/suite.py --also /usr/bin/python3

# make quick PYTHON=python3.13 VENV=.venv-3.13
quick: $(DEV)
	$(BIN)/python scripts/suite.py --quick

# the lower bounds of pyproject.toml: the quick part, and what the optional packages are for; old packages warn
OLDEST := .venv-oldest/.installed
$(OLDEST): pyproject.toml requirements/oldest.txt
	@[ $(MINOR) = 3.11 ] || { echo "these are for Python 3.11: make test-oldest PYTHON=python3.11"; exit 1; }
	@PYTHON=$(PYTHON) LOCK=requirements/oldest.txt scripts/install \
		lab,server,hdf5,tensorboard,remote,keras2,test .venv-oldest
	@touch $@

test-oldest: $(OLDEST)
	.venv-oldest/bin/python scripts/suite.py --quick -W default --disable-warnings tests/hdf5/test_hdf5_parts.py \
		tests/hdf5/test_hdf5_shared.py tests/tfrecord/test_tfrecord_files.py tests/logdir/test_logdir.py \
		tests/server/test_metrics.py tests/integration/test_server_extension.py

lock:
	@PYTHON=$(PYTHON) scripts/lock

# CHAOS_SEED=7 make chaos CHAOS_STEPS=1000; then every program and docstring example, many generated programs,
# and the tests that are marked with soak
chaos: export CHAOS_STEPS ?= 300
chaos: export SAME ?= all
chaos: $(DEV)
	$(BIN)/python -m pytest tests/chaos tests/same
	$(BIN)/python -m pytest -m soak

check: $(DEV)
	$(BIN)/ruff check tfmagic tests benchmarks scripts
	$(BIN)/ruff format --check tfmagic tests benchmarks scripts
	$(BIN)/mypy

bench: $(DEV) chromium
	$(BIN)/python -m benchmarks

shots: $(DEV) chromium
	$(BIN)/python scripts/shots.py

clean:
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache dist
