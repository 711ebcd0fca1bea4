# make demo    a year of flights through one node: killed, restarted, split by Spark, read again
# make test    the whole test suite
# make check   ruff, mypy --strict, import-linter, the commands and links of the documentation
# make venv    only the virtual environment
#
# Everything runs in .venv, which is made from nothing. What is missing on the machine is named.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test check venv java kcat

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$name; break; }; done)

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed '/^$$/q'

venv: $(READY)

$(READY): pyproject.toml src/mainstem/__init__.py
	@[[ -n "$(PYTHON)" ]] || { echo "Python 3.11 or newer is missing: apt-get install python3 python3-venv" >&2; exit 1; }
	@command -v cc >/dev/null || echo "No C compiler: fine where wheels exist, else apt-get install build-essential" >&2
	@[[ -x $(BIN)/python ]] || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "The venv module is incomplete: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY) java
	$(BIN)/python -m demo.flights

test: $(READY) java kcat
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff check src tests demo
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/cli/test_documentation.py

java: $(READY)
	@$(BIN)/python -c 'import sys; from mainstem.pipeline.java import find_java; sys.exit(find_java().missing or 0)'

kcat:
	@command -v kcat >/dev/null || { \
		if [[ $$(id -u) == 0 ]] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq kcat; \
		else echo "The tests use kcat: apt-get install kcat" >&2; exit 1; fi; }
