# Nothing but Python and make is asked of the machine: the targets that need packages make .venv first.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
LOWEST_PYTHON ?= python3.10
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
LOWEST := .venv-lowest
LOCK := .venv-lock
ORACLE := .venv-oracle
ORACLE_INSTALLED := $(ORACLE)/.installed
# What dp-accounting needs and $(VENV) lacks, or has in too new a version (attrs). Pinned here: the other pins contradict it.
ORACLE_PINS := attrs==23.2.0 dm-tree==0.1.10 dp-accounting==0.6.0 wrapt==2.5.2

DOCS := .venv-docs
DOCS_INSTALLED := $(DOCS)/.installed
# Reads mkdocs.yml, by the makers of Material for MkDocs, which ends in 2027.
DOCS_PINS := zensical==0.0.73 mkdocstrings-python==2.0.11 latex2mathml==3.81.1 ruff==0.17.6

# As many processes for tests as there are cores, up to 8; tests of one file share what is trained for them.
# Files in their own order: by their number of tests, those of few long ones would be left to the end.
WORKERS ?= auto
PARALLEL := -n $(WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder

# One thread for tests and for the demo's small networks: on a machine that others use too, more are many times slower.
# Bytecode is kept even where the environment says otherwise: pytest rewrites each test module, and tests start processes.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# Called as $(call create_venv,PYTHON,FOLDER).
define create_venv
	@$(1) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
		{ echo "error: Python 3.10 or newer is needed, but '$(1)' is $$($(1) --version 2>&1 || true)." >&2; \
		  echo "       Name another one, for example: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(1) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "error: '$(1)' cannot make virtual environments; on Debian and Ubuntu install python3-venv." >&2; exit 1; }
	@$(1) -m venv $(2)
endef

.PHONY: help
help: ## show this help
	@echo "usage: make TARGET [PYTHON=python3.12] [PYTEST_ARGS='-k name']"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

.PHONY: venv
venv: $(INSTALLED) ## create .venv and install the project and its pinned dependencies

$(INSTALLED): pyproject.toml constraints.txt
	$(call create_venv,$(PYTHON),$(VENV))
	@echo "installing the project with torch, Lightning and Opacus into $(VENV): up to 7 GB and some minutes, the first time only"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]' -c constraints.txt
	@touch $@

.PHONY: demo
demo: $(INSTALLED) ## handwritten digits: teacher, student and both privacy figures, in minutes
	OMP_NUM_THREADS=1 $(BIN)/LightningCLI pipeline sweeps/demo.yaml

.PHONY: test
test: $(INSTALLED) ## the fast test suite, doctests included
	$(PYTEST) $(PARALLEL) -m "not slow" $(PYTEST_ARGS)

.PHONY: test-slow
test-slow: $(INSTALLED) ## the tests that the fast suite leaves out
	$(PYTEST) $(PARALLEL) -m "slow and not accuracy" $(PYTEST_ARGS)

.PHONY: test-accuracy
test-accuracy: $(INSTALLED) ## five recipes, and a cell of a table if data/ has MNIST, against their records: for the night
	$(PYTEST) $(PARALLEL) -m accuracy tests/test_accuracy.py $(PYTEST_ARGS)

# Fits that the time interrupts go on when it is run again. Without a card each takes hours.
GPU_MINUTES ?= 10
.PHONY: gpu
gpu: $(INSTALLED) ## tables with the papers' networks, 16 fits at a time, for GPU_MINUTES=10 of a card; again goes on
	timeout -s INT $(GPU_MINUTES)m $(SHELL) -c '$(BIN)/LightningCLI tables run dpdfd-table1 dpsd-table1 --preset gpu --jobs 16 --record && \
		$(BIN)/LightningCLI tables run dpsd-table4 labeldp-table1 --preset paper --cell variant=generator --jobs 16 --record' || test $$? = 124

# From Python 3.12 on the interpreter itself says which lines ran, at hardly any cost.
.PHONY: coverage
coverage: $(INSTALLED) ## the fast suite, and how much of the code it runs
	COVERAGE_CORE=$$($(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")') \
		$(PYTEST) $(PARALLEL) -m "not slow" --cov $(PYTEST_ARGS)

.PHONY: test-lowest
test-lowest: ## the fast suite at the lowest versions that pyproject.toml allows (LOWEST_PYTHON=python3.10)
	$(call create_venv,$(LOWEST_PYTHON),$(LOWEST))
	@echo "installing the lowest versions allowed into $(LOWEST): up to 7 GB and some minutes"
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test]' -c constraints-lowest.txt
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest $(PARALLEL) -m "not slow" $(PYTEST_ARGS)

# Sees all of $(VENV), so that torch is not installed twice; what a path file names comes after the environment's own packages.
$(ORACLE_INSTALLED): $(INSTALLED) Makefile
	@rm -rf $(ORACLE)
	@echo "installing dp-accounting into $(ORACLE): a minute"
	$(call create_venv,$(BIN)/python,$(ORACLE))
	@packages() { "$$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }; \
	packages $(BIN)/python > "$$(packages $(ORACLE)/bin/python)/seen.pth"
	@$(ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check $(ORACLE_PINS)
	@touch $@

.PHONY: test-oracle
test-oracle: $(ORACLE_INSTALLED) ## the accountants against dp-accounting, in an environment of its own
	ORACLE=required OMP_NUM_THREADS=1 $(ORACLE)/bin/python -m pytest tests/privacy/test_oracle.py $(PYTEST_ARGS)

$(DOCS_INSTALLED): Makefile
	@rm -rf $(DOCS)
	@echo "installing what builds the site into $(DOCS): a minute"
	$(call create_venv,$(PYTHON),$(DOCS))
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check $(DOCS_PINS)
	@touch $@

.PHONY: docs
docs: $(DOCS_INSTALLED) ## the documentation site, into build/site; a broken link is an error
	$(DOCS)/bin/python docs/.site/stage.py
	$(DOCS)/bin/zensical build --strict --config-file mkdocs.yml

.PHONY: lint
lint: $(INSTALLED) ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: $(INSTALLED) ## mypy --strict
	$(BIN)/mypy --strict privacy datamodules lightning_modules sweeps benchmarks experiments

.PHONY: format
format: $(INSTALLED) ## rewrite the code as ruff would have it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: all-checks
all-checks: test lint types ## what has to be green before a commit

# `build` makes the wheel from the sdist, so that installing the wheel tests both.
RELEASE := build/release
.PHONY: release-check
release-check: ## build sdist and wheel, install in a new environment and run the demo there, without this tree
	@rm -rf $(RELEASE)
	@echo "building and installing the package into $(RELEASE)/venv: up to 7 GB and some minutes"
	$(call create_venv,$(PYTHON),$(RELEASE)/venv)
	@$(RELEASE)/venv/bin/python -m pip install --quiet --disable-pip-version-check build
	$(RELEASE)/venv/bin/python -m build --outdir $(RELEASE)/dist .
	$(RELEASE)/venv/bin/python -m pip install --quiet --disable-pip-version-check $(RELEASE)/dist/*.whl -c constraints.txt
	@mkdir $(RELEASE)/elsewhere
	cd $(RELEASE)/elsewhere && OMP_NUM_THREADS=1 ../venv/bin/LightningCLI pipeline sweeps/demo.yaml

# Tables and figures: which size, in how many processes.
PRESET ?= smoke
JOBS ?= 1
TABLE_ARGS ?=
TABLES := $(BIN)/LightningCLI tables
TABLE_OPTIONS := --preset $(PRESET) --jobs $(JOBS) $(if $(DRY_RUN),--dry-run) $(if $(RECORD),--record) $(TABLE_ARGS)
RUN_TABLES := $(TABLES) run $(TABLE_OPTIONS)

.PHONY: list-tables
list-tables: $(INSTALLED) ## tables and figures; `make table-NAME` or `make figure-NAME` runs one (PRESET=smoke|cpu|gpu|paper JOBS=1 RECORD=)
	@$(TABLES) list

table-%: $(INSTALLED)
	$(RUN_TABLES) $*

figure-%: $(INSTALLED)
	$(RUN_TABLES) $*

.PHONY: tables
tables: $(INSTALLED) ## every table and figure, first seeds first; goes on where it was (JOBS=2 DRY_RUN=1)
	$(RUN_TABLES)
	$(if $(RECORD),$(BIN)/LightningCLI render)

.PHONY: sweep-digits
sweep-digits: $(INSTALLED) teachers/digits.ckpt ## a small W&B sweep on the digits, without an account or a server: some minutes
	OMP_NUM_THREADS=1 $(BIN)/LightningCLI sweep sweeps/wandb/dpdfd_digits.yaml

teachers/digits.ckpt: | $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/LightningCLI fit --config sweeps/teacher_digits.yaml

.PHONY: leaks
leaks: $(INSTALLED) ## what an attacker gets, tables leaks and inversions (PIPELINE=leaks_digits SHADOWS=64)
	$(BIN)/python -m experiments.leaks $(PIPELINE) --shadows $(or $(SHADOWS),64)
	$(BIN)/LightningCLI render results/leaks.md

.PHONY: paper-attacks
paper-attacks: $(INSTALLED) ## the papers' figures of attacks on students and of synthetic images, hours (PIPELINES=paper_attacks_mnist)
	$(BIN)/python -m experiments.paper_attacks $(or $(PIPELINES),$(addprefix paper_attacks_,mnist fashionmnist two_classes))
	$(BIN)/LightningCLI render results/leaks.md

.PHONY: lock
lock: pyproject.toml ## resolve both constraints files anew
	$(call create_venv,$(PYTHON),$(LOCK))
	@$(LOCK)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@resolve() { $(LOCK)/bin/uv pip compile --quiet --no-header --no-annotate --python-version 3.10 \
		--extra medmnist --extra test "$$@" pyproject.toml | grep -vE '^(cuda-|nvidia-|triton=)'; }; \
	{ echo "# The versions that \`make\` installs: one file for Python 3.10 and newer, the markers choose."; \
	  echo "# Made by \`make lock\`. What torch pins for itself on CUDA machines (nvidia-*, cuda-*, triton) is left to torch."; \
	  resolve --universal; } > constraints.txt.new; \
	{ echo "# The lowest version of every direct dependency that pyproject.toml allows, on Python 3.10."; \
	  echo "# Made by \`make lock\`, installed by \`make test-lowest\`."; \
	  resolve --resolution lowest-direct; } > constraints-lowest.txt.new
	@mv constraints.txt.new constraints.txt
	@mv constraints-lowest.txt.new constraints-lowest.txt

.PHONY: clean
clean: ## remove environments, caches and build products; data, runs and results stay
	rm -rf $(VENV) $(LOWEST) $(LOCK) $(ORACLE) $(DOCS) build dist *.egg-info .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
