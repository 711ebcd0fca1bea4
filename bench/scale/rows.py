"""The rows that benches with a command of their own write into result files, for `bench.targets` to find."""

from __future__ import annotations

MOVES, BROKERS, OBJECTS = "moves", "brokers", "objects"
"""Workloads, which are no part of `python -m bench run`."""
DRAIN, REPAIR = "a node is drained", "a lost node is rebuilt"
QUEUE_MOVE = "a queue moves to another write group"
CROWD = "100 readers of one queue through brokers"

P99_TO_ALONE, FAILED, FENCE = "p99_to_alone", "failed", "fence_s"
TO_ONE_READER = "to_one_reader"
TO_OBSTORE = "to_obstore"
"""Of the speed of readers."""

OBJECT_READERS = (1, 100)
OBJECT_LATENCY_MS = 20.0


def object_readers(readers: int, *, apart: bool) -> str:
    """`apart`: the stand-in of the store has a processor of its own."""
    who = "one reader" if readers == 1 else f"{readers} readers of different queues"
    return f"{who} from S3 with {OBJECT_LATENCY_MS:g} ms{', the store apart' if apart else ''}"
