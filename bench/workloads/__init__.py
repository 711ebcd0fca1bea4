"""The workloads, in the order in which they run."""

from __future__ import annotations

from bench.session import Workload
from bench.workloads import large_requests, many_queues, small_requests

WORKLOADS: tuple[Workload, ...] = (
    large_requests.WORKLOAD,
    many_queues.WORKLOAD,
    small_requests.WORKLOAD,
)
