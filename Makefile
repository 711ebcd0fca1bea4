# make demo    a year of flights through one node: killed, restarted; split, merged, compacted by Spark; read again
# make demo-tiers  the same year in an object store (S3): moved there by Spark, read back; the store goes away for a while,
#              and at last the disks are lost, and the node goes on from S3
# make demo-shared the same year in a shared store (S3) alone: split and merged there; the disk is lost, the cluster goes on from S3
# make demo-cluster  the same year through a cluster that grows, loses nodes and shrinks under the load
# make demo-transactions  a bank whose tellers and node are killed half-way through transactions, again and again, and that adds up
# make test    the test suite, real clients and real Spark included, in about twelve minutes on two cores; five files
#              at a time, or WORKERS=n
# make test-all  what `make test` leaves out as well: tests marked `long` (upgrades between versions, a Spark cluster,
#                whether the simulations find planted bugs)
# make simulate  a cluster on simulated time under random faults; SEEDS=first..last or a count, PLANT=<name> plants a bug,
#                NODES=whole has all roles of a node and clients that speak Kafka's protocol, not storage alone,
#                NODES=elastic as well, and their replicas move, as nodes join, are drained, die for long, and go,
#                NODES=moving as well, and queues move between write groups on other nodes,
#                NODES=brokers as whole, but clients are served by brokers without storage,
#                JOBS=2 plays on two cores and prints failures only, FAULTS=clock,transfer has these alone,
#                FAULTS=transactions has transactions, FAULTS=classes (NODES=elastic) write groups of several factors,
#                FAULTS="fewer copies" (NODES=moving) queues that are kept three times and once by turns,
#                FAULTS="votes apart" (NODES=brokers) nodes without storage that alone vote on the metadata,
#                FAULTS="one store" (NODES=moving) a shared store, FAULTS="replaced replicas" replicas that move meanwhile
# make bench   Mainstem beside Apache Kafka, in under ten minutes; BENCH=full make bench takes hours and says more
# make interop other people's clients, kcat and Kafka's own tools against Mainstem and against Kafka, as a table
# make check   ruff, mypy --strict, import-linter, names, plain sentences, the commands and links of the documentation
# make venv    the virtual environment alone
# make clean   remove what the others made
#
# Everything runs in .venv, which is made from nothing. What is missing on the machine is installed where that may be
# done (root on Debian) and named otherwise.

.DEFAULT_GOAL := help
.PHONY: help demo demo-tiers demo-shared demo-cluster demo-transactions test test-all simulate bench interop check venv clean

BIN := .venv/bin
# Workers, each of which takes one file after the other, in the order that tests/conftest.py gives them. Five of them
# keep two cores busy: half of the time tests wait, for processes that start and for elections. A test that
# hangs, twice as long as any waits for anything, shows where, and costs its worker; another takes its place.
WORKERS := 5
# What tests are compiled to is kept: to compile them takes most of the time in which they are found.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 2 \
	-o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed '/^$$/q'

venv:
	@tools/prepare

demo:
	@tools/prepare java
	@$(BIN)/python -m demo.flights

demo-tiers:
	@tools/prepare java
	@$(BIN)/python -m demo.tiers

demo-shared:
	@tools/prepare java
	@$(BIN)/python -m demo.shared

demo-cluster:
	@tools/prepare
	@$(BIN)/python -m demo.cluster

demo-transactions:
	@tools/prepare java
	@$(BIN)/python -m demo.transactions

test:
	@tools/prepare java kcat classes
	@$(PYTEST) -m "not long"

test-all:
	@tools/prepare java kcat classes hadoop
	@$(PYTEST)

simulate:
	@tools/prepare
	@PYTHONPATH=. $(BIN)/python -m tests.simulation.cluster $(or $(SEEDS),100) $(if $(filter whole elastic moving brokers,$(NODES)),--$(NODES)) $(if $(FAULTS),--faults "$(FAULTS)") $(if $(PLANT),--plant $(PLANT)) $(if $(JOBS),--jobs $(JOBS) --quiet)

bench:
	@tools/prepare java
	@$(BIN)/python -m bench run

interop:
	@tools/prepare java kcat
	@$(BIN)/python -m bench.interop

check:
	@tools/prepare
	$(BIN)/ruff check src tests demo bench tools
	$(BIN)/ruff format --check src tests demo bench tools
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tools.name_twins
	$(BIN)/python -m tools.headless_sentences
	$(BIN)/python -m pytest tests/cli/test_documentation.py

clean:
	rm -rf .venv .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
	find src tests bench demo tools -name __pycache__ -prune -exec rm -rf {} +
