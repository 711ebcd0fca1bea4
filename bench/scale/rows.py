"""The rows that the benches of this folder write into result files, for `bench.targets` to find."""

from __future__ import annotations

MOVES, BROKERS = "moves", "brokers"
"""Workloads, which are no part of `python -m bench run`: each is a command of its own."""
DRAIN, REPAIR = "a node is drained", "a lost node is rebuilt"
CROWD = "100 readers of one queue through brokers"

P99_TO_ALONE, FAILED = "p99_to_alone", "failed"
TO_ONE_READER = "to_one_reader"
