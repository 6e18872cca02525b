# Everything runs in .venv, which the targets below make and fill from constraints.txt. Nothing is installed again
# until pyproject.toml, constraints.txt, the Python version or the place of this checkout changes.
#
#   PYTHON=/path/to/python3.12   which Python makes .venv (default: the first of python3, python3.12, python3.11
#                                that is 3.11 or 3.12)
#   JOBS=1                       how many processes run the tests (default 3: one has the stand-in for AWS, where it
#                                mostly waits; a file's tests stay together, in order)
#   ARGS="..."                   handed on to the command: make run ARGS="data=sst2 model=bert-base"
#
# On Linux without a GPU, torch's much smaller CPU build can be had the usual way, by pip's own configuration:
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make run

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

PYTHON ?=
ARGS ?=
JOBS ?= 3
EXPERIMENT ?= laptop
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
UV_VERSION := 0.13.9

# What each kind of install holds. aws is part of the second so that `pip check` sees ZenML and SkyPilot together.
RUN_EXTRAS := train,orchestrate,demo,serve
DEV_EXTRAS := $(RUN_EXTRAS),aws,dev,wandb,deepspeed,onnx,qlora

# "PROGRAM VERSION" of the first Python that will do; empty if there is none.
FOUND := $(shell for p in $(or $(PYTHON),python3 python3.12 python3.11); do \
	v=$$("$$p" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
	case $$v in (3.11|3.12) echo "$$p" "$$v"; break;; esac; done)
PY := $(word 1,$(FOUND))
PY_VERSION := $(word 2,$(FOUND))
NEED_PYTHON = $(if $(PY),,$(error skytune needs Python 3.11 or 3.12: \
	$(if $(PYTHON),$(PYTHON) is neither,found none as python3 python3.12 python3.11); \
	try make $(MAKECMDGOALS) PYTHON=/path/to/python3.12))

# A stamp says: .venv holds exactly what these files ask for. Its name is made of their content, not of their dates, which
# a git checkout changes.
KEY := $(PY_VERSION)-$(shell { pwd; cat pyproject.toml constraints.txt; } 2>/dev/null | cksum | tr -d ' ')
RUN_STAMP := $(VENV)/.skytune-run-$(KEY)
DEV_STAMP := $(VENV)/.skytune-dev-$(KEY)

# pip and not uv: pip's configuration (a mirror, a proxy, a folder of wheels) is what people's machines have.
# --build-constraint (pip 25.3) pins setuptools where a source package is built.
define install
	@$(NEED_PYTHON)
	@rm -f $(VENV)/.skytune-*
	@# A .venv of another Python, or one that was moved (its scripts name the old place), is made anew.
	@v=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); \
	if [ "$$v" != "$(PY_VERSION)" ] || ! grep -qsF "$(CURDIR)/$(VENV)" $(BIN)/activate; then \
		echo "making $(VENV) with $(PY) ($(PY_VERSION))"; \
		"$(PY)" -m venv --clear $(VENV) || { \
			echo "$(PY) cannot make virtual environments; on Debian and Ubuntu: apt-get install python$(PY_VERSION)-venv" >&2; \
			exit 1; }; \
	fi
	@echo "installing the pinned dependencies into $(VENV): $(1)"
	@$(PIP) install --quiet --disable-pip-version-check --constraint constraints.txt --upgrade pip
	@# Told in full the first time, where it lasts; later only what is wrong.
	$(PIP) install $(if $(wildcard $(VENV)/.skytune-*),--quiet) --constraint constraints.txt --build-constraint constraints.txt --editable ".[$(1)]"
	@touch $(2)
endef

.PHONY: help run experiment results install install-dev test test-fast test-aws soak farm sagemaker-standin lint check doctor docs lock clean distclean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

run: $(RUN_STAMP) ## fine-tune: install what is missing, then python src/run.py (ARGS="data=sst2 model=bert-base")
	@$(BIN)/python src/run.py $(ARGS)

# EXPERIMENT=instances      another design of configs/experiment
experiment: $(RUN_STAMP) ## what does it cost, how long, how good? (EXPERIMENT=laptop; ARGS="study.dry_run=true")
	@$(BIN)/python src/run.py pipeline=study experiment=$(EXPERIMENT) $(ARGS)

results: $(RUN_STAMP) ## draw an experiment's page again from its stored results (EXPERIMENT=laptop)
	@$(BIN)/python src/run.py pipeline=study experiment=$(EXPERIMENT) study.report_only=true $(ARGS)

test: $(DEV_STAMP) ## the whole test suite, but for soak (ARGS="-k splits")
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: $(DEV_STAMP) ## the tests of every room that start no process: under three minutes on two cores (ARGS="-k splits")
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not processes and not slow and not soak and not aws" $(ARGS)

# Part of `make test`: where the stand-in cannot start (it needs Linux and root) they skip with the reason, and fail in CI.
test-aws: $(DEV_STAMP) ## only the tests with the real SkyPilot on the stand-in for AWS: Linux, as root, ten minutes
	@$(BIN)/python -m pytest -m "aws and not soak" tests/aws $(ARGS)

install: $(RUN_STAMP) ## only install what `make run` needs

install-dev: $(DEV_STAMP) ## only install what tests and checks need

lint: $(DEV_STAMP) ## ruff check and format, mypy, import-linter, names
	@status=0; \
	$(BIN)/python -m ruff check src tests tools examples || status=1; \
	$(BIN)/python -m ruff format --check --quiet src tests benchmarks tools examples || status=1; \
	$(BIN)/python -m mypy && $(BIN)/python -m mypy benchmarks || status=1; \
	$(BIN)/lint-imports --no-logo || status=1; \
	$(BIN)/python .ci/names.py || status=1; \
	exit $$status

check: $(DEV_STAMP) ## pip check: do the installed packages fit together?
	@$(PIP) check

doctor: $(RUN_STAMP) ## is this machine ready? versions, devices, processes, disk, hub, ZenML
	@$(BIN)/python -m skytune.doctor.report $(ARGS)

docs: $(DEV_STAMP) ## write docs/config.md and the rooms in docs/architecture.md again, from the source
	@$(BIN)/python tools/docs.py

# The kill test appends what happened to benchmarks/results/soak.md.
#   SKYTUNE_SOAK_ROUNDS=200      kills a store
#   SKYTUNE_SOAK_MINUTES=60      the longest that a store may take; fewer rounds than asked for fail, and the log says it
#   SKYTUNE_KILL_SEED=7          the moments of an earlier soak
soak: $(DEV_STAMP) ## the long tests that `make test` leaves out; the kill test writes benchmarks/results/soak.md
	@$(BIN)/python -m pytest -m soak $(ARGS)

sagemaker-standin: $(DEV_STAMP) ## a SageMaker that runs on this machine, until Ctrl-C: it says which variables lead to it
	@$(BIN)/python tests/sagemaker/standin.py

farm: $(DEV_STAMP) ## rehearse AWS on Linux, as root: a shell in which AWS is this machine (ARGS=status|down|...)
	@PYTHONPATH=tests/aws $(BIN)/python -m farm $(or $(ARGS),shell)

# uv resolves for Python 3.11 and 3.12, Linux and macOS in one go. It keeps the pins that still fit; to renew:
#   make lock ARGS=--upgrade      make lock ARGS="--upgrade-package datasets"
# It does not read pip's configuration: name a mirror with UV_DEFAULT_INDEX. There are no hashes, because torch's wheel
# differs between platforms under one version. deepspeed is published as source only; its metadata is built without
# torch, which works, so that nothing about it has to be written down here by hand.
lock: ## rewrite constraints.txt from pyproject.toml (ARGS=--upgrade to renew every pin)
	@$(NEED_PYTHON)
	@.lock-venv/bin/uv --version 2>/dev/null | grep -q "^uv $(UV_VERSION) " || { \
		"$(PY)" -m venv --clear .lock-venv && \
		.lock-venv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION); }
	@.lock-venv/bin/uv pip compile --quiet --universal --python-version 3.11 --all-extras --annotation-style line \
		--custom-compile-command "make lock" $(ARGS) --output-file constraints.txt pyproject.toml
	@echo "constraints.txt: $$(grep -c '==' constraints.txt) pins"

clean: ## remove caches and build output
	@rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .lock-venv
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## the same, and .venv
	@rm -rf $(VENV)

$(RUN_STAMP):
	$(call install,$(RUN_EXTRAS),$(RUN_STAMP))

$(DEV_STAMP):
	$(call install,$(DEV_EXTRAS),$(RUN_STAMP) $(DEV_STAMP))
