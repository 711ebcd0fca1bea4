"""Adds up the cost of messages kept for a month, on paper: replicas on block storage, tiered storage, a shared store.

    python -m bench.store.tier_costs --megabytes-per-second 100 --days 7 30 365

Nothing is run: these are list prices times what each design keeps and sends. Machines are left out, as all designs need
about the same for the same traffic, and so is the disks' throughput that readers of the past take. The traffic of
replicas across zones is the same for all and stands below the table. The requests of Mainstem are those that `python -m
bench.store.reads.remote_requests` counts; those of Kafka are an estimate from the defaults of Aiven's plugin."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import NamedTuple

SECONDS_PER_DAY = 86_400
DAYS_PER_MONTH = 30


class Prices(NamedTuple):
    """US dollars, in AWS's region us-east-1."""

    store_gb_month: float = 0.023
    """S3 Standard, the first 50 TB; 0.022 for the next 450, which is left out."""
    write_requests_1000: float = 0.005
    """PUT, COPY, POST, LIST."""
    read_requests_1000: float = 0.0004
    """GET and all others; deletions cost nothing."""
    disk_gb_month: float = 0.08
    """EBS gp3, with 125 MB/s and 3,000 operations a second per volume."""
    disk_mb_per_second_month: float = 0.04
    """EBS gp3, per MB/s beyond that."""
    across_zones_gb: float = 0.02
    """0.01 on either side."""


PRICES = Prices()
"""List prices of https://aws.amazon.com/s3/pricing/, …/ebs/pricing/ and …/ec2/pricing/on-demand/ as others quote them,
between 2024 and May 2026; not compared with these pages since. Transfers between machines and S3 within a region are
free."""

WRITES = {"PutObject", "UploadPart", "CreateMultipartUpload", "CompleteMultipartUpload", "ListObjectsV2"}
READS = {"GetObject", "HeadObject"}

REPLICAS = 3
DISK_FULLNESS = 0.7
"""Of what is paid for, as block storage is paid for whether it is used or not."""
LOCAL_HOURS = 12
"""Either kind of tiered storage keeps so much on each replica's disk."""
INCLUDED_MB_PER_SECOND = 125
"""Per volume; each replica has its own, as if on three machines."""
JOURNAL_GB = 20
"""Per replica: what is not split, and the pool of segments (64 MiB each), with room to spare."""


class Requests(NamedTuple):
    """Per GB of batches, by S3's price classes."""

    writes: float
    reads: float

    def dollars(self, prices: Prices) -> float:
        return (self.writes * prices.write_requests_1000 + self.reads * prices.read_requests_1000) / 1000


class Traffic(NamedTuple):
    megabytes_per_second: float
    """Of batches, as producers have compressed them."""
    days: int
    """How long they are kept."""
    reads: float
    """Reads of a byte from the store, on average. Readers at the tail are served from memory."""

    @property
    def kept_gb(self) -> float:
        return self.megabytes_per_second * SECONDS_PER_DAY * self.days / 1000

    @property
    def month_gb(self) -> float:
        """Bytes that producers send in a month."""
        return self.megabytes_per_second * SECONDS_PER_DAY * DAYS_PER_MONTH / 1000


class Design(NamedTuple):
    """The needs of one way of keeping messages, whatever the traffic."""

    name: str
    local_hours: float | None
    """How long messages stay on each replica's disk; None: for their whole life."""
    other_local_gb: float
    """Per replica, besides these."""
    disk_writes: tuple[float, ...]
    """Per volume of a replica, how often a byte is written to it."""
    in_store: bool
    moved: Requests
    """Requests to have a byte in the store, all its life…"""
    read: Requests
    """…and to read it from there once."""


class Bill(NamedTuple):
    """US dollars a month."""

    disks: float
    store: float
    requests: float

    @property
    def all(self) -> float:
        return self.disks + self.store + self.requests


NONE = Requests(0, 0)
KAFKA_MOVED = Requests(writes=45, reads=0)
"""A segment of 1 GiB in parts of 25 MiB (the plugin's default), its indexes, its manifest, and what begins and ends the
upload."""
KAFKA_READ = Requests(writes=0, reads=240)
"""Chunks of 4 MiB."""
MOVED = Requests(writes=136, reads=59)
READ = Requests(writes=0, reads=307)
"""The counts of `python -m bench.store.reads.remote_requests --mebibytes 320 --partitions 4` with queue segments of
64 MiB: a part per 16 MiB, what begins and ends an upload; some 3.6 MB per request that reads."""
SHARED = Requests(writes=337, reads=465)
"""With `--shared --mebibytes 640 --partitions 4`: runs are written, read by merges and written again as segments; the
node looks at each file before it counts."""
SHARED_READ = Requests(writes=0, reads=301)
"""The same run reads it back."""

DESIGNS = (
    Design("Kafka, three replicas on disks", None, 0, (1,), False, NONE, NONE),
    Design("Kafka, tiered storage", LOCAL_HOURS, 0, (1,), True, KAFKA_MOVED, KAFKA_READ),
    Design("Mainstem, three replicas on disks", None, JOURNAL_GB, (1, 2.5), False, NONE, NONE),
    Design("Mainstem, remote tier", LOCAL_HOURS, JOURNAL_GB, (1, 2.5), True, MOVED, READ),
    Design(
        "Mainstem, shared store",
        0,
        JOURNAL_GB,
        (1,),
        True,
        SHARED,
        SHARED_READ,
    ),
)
"""Mainstem writes a byte to disk 1 once, and to disk 2 as a run and once or twice more by merges. With a shared store
runs and merges are written there, and merges read there."""


def bill(design: Design, traffic: Traffic, prices: Prices) -> Bill:
    hours = traffic.days * 24 if design.local_hours is None else min(design.local_hours, traffic.days * 24)
    local_gb = traffic.megabytes_per_second * 3600 * hours / 1000 + design.other_local_gb
    more_throughput = REPLICAS * sum(
        max(0.0, traffic.megabytes_per_second * writes - INCLUDED_MB_PER_SECOND) for writes in design.disk_writes
    )
    disks = (
        REPLICAS * local_gb / DISK_FULLNESS * prices.disk_gb_month + more_throughput * prices.disk_mb_per_second_month
    )
    if not design.in_store:
        return Bill(disks, 0, 0)
    requests = design.moved.dollars(prices) + traffic.reads * design.read.dollars(prices)
    return Bill(disks, traffic.kept_gb * prices.store_gb_month, traffic.month_gb * requests)


def priced(counts: Mapping[str, int]) -> float:
    """US dollars of requests, by S3's names of operations."""
    writes = sum(count for name, count in counts.items() if name in WRITES)
    reads = sum(count for name, count in counts.items() if name in READS)
    return Requests(writes, reads).dollars(PRICES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes-per-second", type=float, default=100)
    parser.add_argument("--days", type=int, nargs="+", default=[7, 30, 365])
    parser.add_argument("--reads", type=float, default=1, help="how often a byte is read from the store")
    options = parser.parse_args()
    print(f"{'dollars a month':36}{'kept':>10}{'disks':>10}{'store':>10}{'requests':>10}{'all':>10}")
    for days in options.days:
        traffic = Traffic(options.megabytes_per_second, days, options.reads)
        for design in DESIGNS:
            one = bill(design, traffic, PRICES)
            print(
                f"{design.name:36}{f'{days} days':>10}{one.disks:>10,.0f}{one.store:>10,.0f}{one.requests:>10,.0f}"
                f"{one.all:>10,.0f}"
            )
    across = (REPLICAS - 1) * traffic.month_gb * PRICES.across_zones_gb
    print(
        f"\nand, with a replica in each of three zones, {across:,.0f} for what replicas send each other, in all of them"
    )


if __name__ == "__main__":
    main()
