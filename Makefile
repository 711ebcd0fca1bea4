# Everything starts from nothing: the first target that needs it makes .venv and says what else is missing.

PYTEST_OPTIONS ?=
RUN := .venv/bin/python

.PHONY: help venv demo test check clean

help:
	@echo "make demo    the whole way of real data, from a Kafka client to the queue store and back (3 minutes)"
	@echo "make test    the test suite, real clients and real Spark included"
	@echo "make check   lint, types, import rules, documentation"
	@echo "make venv    the virtual environment in .venv alone"
	@echo "make clean   remove what the other targets made"

venv:
	@tools/prepare

demo:
	@tools/prepare java
	@$(RUN) -m demo

test:
	@tools/prepare java kcat
	@$(RUN) -m pytest tests $(PYTEST_OPTIONS)

check:
	@tools/prepare
	$(RUN) -m ruff check src tests demo bench
	$(RUN) -m mypy
	.venv/bin/lint-imports --no-cache
	$(RUN) -m pytest tests/docs

clean:
	rm -rf .venv .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
