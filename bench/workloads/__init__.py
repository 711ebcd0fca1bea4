"""The workloads, in the order in which they run."""

from __future__ import annotations

from bench.session import Workload
from bench.workloads import (
    catching_up,
    consuming,
    everything,
    footprint,
    isolation,
    kernel_alone,
    large_requests,
    long_term_store,
    many_queues,
    over_tls,
    real_clients,
    small_requests,
    splitting,
    tiering,
    transactions,
)

WORKLOADS: tuple[Workload, ...] = (
    large_requests.WORKLOAD,
    many_queues.WORKLOAD,
    small_requests.WORKLOAD,
    consuming.WORKLOAD,
    isolation.WORKLOAD,
    footprint.WORKLOAD,
    splitting.WORKLOAD,
    catching_up.WORKLOAD,
    real_clients.WORKLOAD,
    kernel_alone.WORKLOAD,
    long_term_store.WORKLOAD,
    everything.WORKLOAD,
    tiering.WORKLOAD,
    over_tls.WORKLOAD,
    transactions.WORKLOAD,
)
