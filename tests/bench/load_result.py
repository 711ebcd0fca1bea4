"""The results that the load generator returns, for tests of their use."""

from __future__ import annotations

from bench.load import Latency, Result

BATCH_BYTES = 1_000


def load_result(*, seconds: float, size: int) -> Result:
    """Of a run that moved `size` bytes in batches of 1,000, each in a request of its own."""
    latency = Latency(p50=500.0, p90=1000.0, p99=2000.0, p99_9=3000.0, max=4000.0, mean=600.0, count=1)
    count = size // BATCH_BYTES
    return Result(
        command="produce", seconds=seconds, requests=count, batches=count, records=count, bytes=size,
        mb_per_s=size / 1e6 / seconds, batches_per_s=count / seconds, requests_per_s=count / seconds,
        latency_us=latency, latency_buckets=[(500_000, count)],
        served_us=latency, served_buckets=[], send_delay_us=latency, errors={}, gaps=0, checksum_errors=0, empty=0,
        abandoned=0, unsent=0, load_cpu_seconds=0.0, intervals=[],
    )  # fmt: skip
