# make demo runs the quickstart, make test runs the tests; each installs what it needs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MINOR := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
LOCK := $(wildcard requirements/$(MINOR).txt)

# one stamp file for each kind of installation; a change of its packages or of the interpreter installs again
DEMO := $(VENV)/.demo-$(MINOR)
RAY := $(VENV)/.ray-$(MINOR)
LAB := $(VENV)/.lab-$(MINOR)
DEV := $(VENV)/.dev-$(MINOR)

.DEFAULT_GOAL := help
.PHONY: help chaos near setup chromium demo demo-ray lab test quick test-oldest test-next test-colab test-kaggle check docs dist bench bench-ray bench-compare shots lock clean

help:
	@echo "make demo   run notebooks/how-to/quickstart.ipynb on a real cluster and print the output of its tasks"
	@echo "make demo-ray  the same on a Ray cluster with two nodes, which it starts on this machine"
	@echo "make lab    open it in JupyterLab"
	@echo "make test   run the tests"
	@echo "make quick  run the part of them that takes about a minute"
	@echo "make near   check what you have changed: lint, types, and the tests of the changed packages"
	@echo "make test-oldest  run that part with the oldest versions that pyproject.toml allows"
	@echo "make test-next  run it with the pre-releases of TensorFlow, Keras and the others"
	@echo "make test-colab PYTHON=python3.13  run it with the packages of Google's Colab"
	@echo "make test-kaggle PYTHON=python3.12  run it with those of Kaggle"
	@echo "make check  check lint, format and types"
	@echo "make docs   build the documentation site: build/site/index.html"
	@echo "make dist   build wheel and sdist, the same bytes for the same commit: dist/"
	@echo "make chaos  run hundreds of random faults, from a seed; thousands of programs with and without tfmagic; soak tests"
	@echo "make bench  measure speed and memory, compared with ipyparallel"
	@echo "make bench-ray  measure tasks on the nodes of a Ray cluster, compared with plain Ray actors"
	@echo "make bench-compare BASE=COMMIT  compare the speed with that of another commit"
	@echo "make shots  take the screenshots of the docs from the running quickstart"
	@echo "make lock   choose again the versions that all of these install: requirements/"

$(DEMO): pyproject.toml $(LOCK)
	@PYTHON=$(PYTHON) scripts/install demo $(VENV)
	@touch $@

$(RAY): pyproject.toml $(LOCK)
	@PYTHON=$(PYTHON) scripts/install demo,ray $(VENV)
	@touch $(DEMO) $@

# a larger installation also serves the targets that need less
$(LAB): pyproject.toml $(LOCK)
	@PYTHON=$(PYTHON) scripts/install lab $(VENV)
	@touch $(DEMO) $@

$(DEV): pyproject.toml $(LOCK)
	@PYTHON=$(PYTHON) scripts/install dev $(VENV)
	@touch $(DEMO) $(RAY) $(LAB) $@

setup: $(DEV)

demo: $(DEMO)
	@$(BIN)/python scripts/demo.py

demo-ray: $(RAY)
	@$(BIN)/python scripts/demo.py --ray

lab: $(LAB)
	$(BIN)/jupyter lab --notebook-dir notebooks notebooks/how-to/quickstart.ipynb

chromium:
	@scripts/install-debian-packages

# the checks of accessibility; npm is the only way to get it
AXE := $(VENV)/node_modules/axe-core/axe.min.js
$(AXE): chromium
	@npm install --prefix $(VENV) --no-save --no-package-lock --no-audit --no-fund --silent axe-core@4.14.1

# environments with other libraries beside tfmagic: tests/environments
BESIDE := .venv-beside/.cheapest-$(MINOR)
$(BESIDE): $(DEV) scripts/beside
	@scripts/beside $(VENV) arrow class collaboration front-ends
	@touch $@

# the whole suite; then the quick part on Debian's own Python, if its version differs
test: $(DEV) $(BESIDE) $(AXE) chromium
	$(BIN)/python scripts/suite.py --also /usr/bin/python3

# make quick PYTHON=python3.13 VENV=.venv-3.13
quick: $(DEV)
	$(BIN)/python scripts/suite.py --quick

# widgets of ipywidgets 7 are text, and IPython 7 adds words of its own to completions
IPYWIDGETS_7 := not widget and not flood_of_updates and not callback_that_takes and not tab_offers

# the quick part and the tests of optional packages at the lower bounds of pyproject.toml; warnings of old packages
# are no errors
OLDEST := .venv-oldest/.installed
$(OLDEST): pyproject.toml requirements/oldest.txt
	@[ $(MINOR) = 3.11 ] || { echo "requirements/oldest.txt is for Python 3.11: make test-oldest PYTHON=python3.11"; exit 1; }
	@PYTHON=$(PYTHON) LOCK=requirements/oldest.txt scripts/install \
		lab,server,ray,hdf5,tensorboard,remote,keras2,test .venv-oldest
	@touch $@

test-oldest: $(OLDEST)
	.venv-oldest/bin/python scripts/suite.py --quick -W default --disable-warnings tests/hdf5 tests/tfrecord \
		tests/logdir/test_saving.py tests/logdir/test_owners.py tests/logdir/test_logdir_checks.py \
		tests/server/test_metrics.py tests/server/test_server_extension.py tests/training -k '$(IPYWIDGETS_7)'

# the quick part, the quickstart, and what leans on TensorFlow's and Keras' own parts, with pre-releases; deprecations
# are no errors
NEXT := .venv-next/.installed
$(NEXT): pyproject.toml requirements/next.txt
	@[ $(MINOR) = 3.11 ] || { echo "requirements/next.txt is for Python 3.11: make test-next PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv .venv-next
	.venv-next/bin/python -m pip install --quiet --no-deps --requirement requirements/next.txt --editable .
	@touch $@

test-next: $(NEXT)
	.venv-next/bin/python scripts/suite.py --quick -W default --disable-warnings tests/notebooks/test_quickstart.py \
		tests/task tests/training tests/task/test_keras_saving.py tests/features/profile/test_profile.py \
		tests/integration/test_interrupts.py tests/training/test_strategies.py tests/task/test_new_context.py \
		tests/serialization/test_captured_values.py tests/backends/test_exposure.py tests/features/track/test_track.py

# the quick part with the packages of a hosted page, which an installation of tfmagic leaves as they are; it has no
# Ray and no Keras 2
test-colab: HOSTED := 3.13
test-kaggle: HOSTED := 3.12
.venv-%/.hosted: requirements/%.txt pyproject.toml
	@[ $(MINOR) = $(HOSTED) ] || { echo "$< is for Python $(HOSTED): make test-$* PYTHON=python$(HOSTED)"; exit 1; }
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --no-deps --requirement $< --editable .
	@touch $@

test-colab test-kaggle: test-%: .venv-%/.hosted
	.venv-$*/bin/python scripts/suite.py --quick -W default --disable-warnings tests/training/test_strategies.py \
		tests/clusters/test_detached.py tests/clusters/test_pictures.py tests/integration/test_interrupts.py \
		-k '$(IPYWIDGETS_7) and not ray and not keras_2'

lock:
	@PYTHON=$(PYTHON) scripts/lock

# CHAOS_SEED=7 make chaos CHAOS_STEPS=1000; then every program and docstring example, many generated programs,
# a hundred million simulated events, and the tests that are marked with soak, among them a thousand generated
# training programs (TRAINING_SEED, TRAINING_PROGRAMS), an hour; at last the suite in three orders. SAME_SEQUENCES=5000 tries more sequences
# of changes in a notebook
chaos: export CHAOS_STEPS ?= 300
chaos: export SAME ?= all
chaos: export SIMULATED_EVENTS ?= 100000000
chaos: export TRAINING_PROGRAMS ?= 1000
chaos: $(DEV)
	@scripts/beside $(VENV) arrow class collaboration datasets front-ends jax opencv torch
	$(BIN)/python -m pytest tests/chaos tests/same tests/supervisor/test_simulation.py
	SAME=sample .venv-beside/arrow/bin/python -m pytest tests/same
	$(BIN)/python -m pytest -m soak
	$(BIN)/python scripts/suite.py --orders 3

check: $(DEV)
	$(BIN)/ruff check tfmagic tests benchmarks scripts
	$(BIN)/ruff format --check tfmagic tests benchmarks scripts
	$(BIN)/mypy

# make near SINCE=COMMIT
near: $(DEV)
	@$(BIN)/python scripts/near.py $(SINCE)

docs: $(DEV)
	$(BIN)/python scripts/docs.py

dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
dist: $(DEV)
	$(BIN)/python -m build --no-isolation --outdir dist .

bench: $(DEV) $(BESIDE) chromium
	$(BIN)/python -m benchmarks

bench-compare: $(DEV)
	$(BIN)/python -m benchmarks.compare $(BASE)

# hosts need no Jupyter: its server brings parts of jsonschema that cost each process of Ray 19 MiB
HOSTS := .venv-hosts/.installed-$(MINOR)
$(HOSTS): pyproject.toml $(LOCK)
	@PYTHON=$(PYTHON) scripts/install demo,ray .venv-hosts
	@touch $@

bench-ray: $(HOSTS)
	.venv-hosts/bin/python -m benchmarks hosts

shots: $(DEV) chromium
	$(BIN)/python scripts/shots.py

clean:
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache dist
