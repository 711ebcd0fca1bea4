"""`make demo-tiers`: a topic whose history lies in an object store, which goes away for a while and outlives the disks.

The story: an S3 server and a node start from nothing. A Kafka client sends the flights of 2013 up to September, each
with its date, to a topic that keeps everything for ever, and a day of it on disk. Spark splits and merges them and
moves them to S3, the node drops its own copies, and all of it is read back from S3, by offset and by time. Then S3 goes
away: the rest of the year is sent and followed at the tail, split and merged, while a reader of the past waits, and
what is to be moved adds up. When S3 is back that reader goes on, the rest is moved, and the whole year is read from S3.
At last the node loses both of its disks, and goes on with what S3 has (`lost_disks.py`).
Exit code 0 only if every check at the end holds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewTopic
from tools.s3_server import Counts, S3Server

from demo.cold_reader import ColdReader
from demo.commands import run
from demo.errors import DemoFailed
from demo.lost_disks import LostDisks
from demo.messages.data import FLIGHTS, FlightData, fetch
from demo.messages.ledger import Reading
from demo.messages.readers import Follower, count_between, read_whole
from demo.messages.sender import Sender
from demo.node_process import NodeProcess
from demo.stage import SECONDS_MAX, create_topics, perform
from demo.summary import Check, say, show
from demo.waiting import Pace, wait_until

PARTITIONS = {"flights": 4, "airports": 2}
TIERED, LOCAL = "flights", "airports"
DAY_MS = 86_400_000
CONFIGS = {
    TIERED: {
        "remote.storage.enable": "true",
        "retention.ms": "-1",
        "local.retention.ms": str(DAY_MS),
        "segment.bytes": str(1 << 20),
    }
}
"""The flights are years old: what of them is in S3 need not stay on disk."""
FIRST_OF_OCTOBER = "2013-10-01"
HOLIDAY = "2013-07-04"
LAST_DAY = "2013-12-31"
"""Its flights are sent once more at the end, as those of a new year."""
DATA_DIRECTORY = Path(".demo")

FLIGHTS_PER_SECOND = 20_000
STEP_SECONDS_MAX = 60.0
ASKED_SECONDS_MAX = 20.0

NODE_SETTINGS: dict[str, object] = {
    # Small data on a short time: split early and often, in small segments, and at once.
    "pipeline.start_bytes": 1 << 20,
    "pipeline.start_age_seconds": 1,
    "pipeline.nice": 0,
    "journal.segment_bytes": 8 << 20,
    "journal.segment_age_seconds": 2,
    "storage.prune_seconds": 0.5,
    "storage.retention_check_seconds": 1,
    # A store that is out is asked again soon.
    "object_store.retry_seconds": 2,
    "object_store.probe_seconds_max": 2,
}


def main() -> int:
    return perform(_story)


def _story(directory: Path, s3: S3Server) -> TierStory:
    node = NodeProcess(directory, NODE_SETTINGS)
    node.set("remote_dir", _url(s3))
    node.set("object_store.endpoint", s3.endpoint)
    return TierStory(node, s3, fetch(DATA_DIRECTORY))


def _url(s3: S3Server) -> str:
    return f"s3://{s3.bucket}/demo"


class TierStory:
    """The demo's steps over one node and its object store; `tell` goes through them and returns what they proved."""

    def __init__(self, node: NodeProcess, s3: S3Server, data: FlightData) -> None:
        self.node = node
        self._s3 = s3
        self._data = data
        self._reader = ColdReader(node, PARTITIONS, say)
        self._by_day = {
            day: list(flights)
            for day, flights in groupby(sorted(data.flights(), key=attrgetter("day")), attrgetter("day"))
        }
        """In the order of the calendar, which that of the file is not."""
        self._tail_tiers: Mapping[str, int] = {}

    def tell(self) -> list[Check]:
        seconds = self.node.start()
        say(f"S3 at {self._s3.endpoint}; node ready after {seconds:.1f} s: Kafka at {self.node.addresses['kafka']}")
        create_topics(
            self.node.addresses["kafka"],
            (NewTopic(name, count, 1, config=CONFIGS.get(name, {})) for name, count in PARTITIONS.items()),
        )
        # Not compressed, so that each quarter of the year fills a queue segment in every partition.
        sender = Sender(self.node.addresses["kafka"], PARTITIONS, compression="none")
        follower = Follower(self.node.addresses["kafka"], TIERED, PARTITIONS[TIERED])
        follower.start()
        try:
            checks = [
                *self._move_history(sender, follower),
                *self._go_on_without_the_store(sender, follower),
                *self._catch_up(sender, follower),
            ]
        finally:
            follower.stop()
        disks = LostDisks(self.node, _url(self._s3), self._reader, PARTITIONS)
        return [*checks, *disks.tell(self._year, lambda sender: self._send(sender, [LAST_DAY]))]

    def served(self) -> dict[str, Mapping[str, int]]:
        return {**self._reader.served, "the rest of the year, as it came": self._tail_tiers}

    def _move_history(self, sender: Sender, follower: Follower) -> list[Check]:
        """Nine months, into S3 and out of it."""
        for row in self._data.airports():
            sender.send(LOCAL, row.key, row.value)
        self._send(sender, (day for day in self._by_day if day < FIRST_OF_OCTOBER))
        self._wait_for_split()
        self.node.set("pipeline.mode", "off")  # from its next start on; commands do the rest, in the story's order
        before = self._bytes()
        self._run("store", "tier", "--once")
        told = self._wait_for_local_copies_to_go()
        uploads = self._s3.counts()
        show("mainstem store usage", run("store", "usage", "--http", self.node.addresses["http"]))
        again = self._reader.read("nine months back from S3")
        reads = self._s3.counts().since(uploads)
        flown = sum(len(self._by_day[day]) for day in self._by_day if day < FIRST_OF_OCTOBER)
        self._wait_for_follower(follower, flown)
        return [
            Check(
                "files moved to S3, and left the disk",
                told["local"] == 0 < told["remote"],
                f"{before['local'] / 1e6:.1f} MB on disk, {told['remote'] / 1e6:.1f} MB in S3, by {_told(uploads)}",
            ),
            Check(
                "nine months read back from S3: complete, in order per key, nothing twice",
                again[TIERED].is_exactly(sender.sent[TIERED]) and len(again[TIERED].fingerprints) == flown,
                f"{flown:,} messages, {len(again[TIERED].digests()):,} key digests equal, by {_told(reads)}",
            ),
            self._check_of_time(),
        ]

    def _check_of_time(self) -> Check:
        """Offsets of a day, looked up by time."""
        start = _midnight_ms(HOLIDAY)
        found = count_between(self.node.addresses["kafka"], TIERED, PARTITIONS[TIERED], start, start + DAY_MS)
        wanted = len(self._by_day[HOLIDAY])
        return Check(f"offsets of {HOLIDAY} found by time, in S3", found == wanted, f"{found} flights of {wanted}")

    def _go_on_without_the_store(self, sender: Sender, follower: Follower) -> list[Check]:
        """The last three months, all but a day of them while nobody listens at S3."""
        self.node.stop()
        self.node.start()  # nothing of S3 in memory
        self._send(sender, [FIRST_OF_OCTOBER])
        self._wait_for_follower(follower, sender.sent[TIERED].rows)
        self._s3.go_away()
        say("nobody listens at S3 any more")
        self._historian = PatientReader(self.node.addresses["kafka"], {TIERED: PARTITIONS[TIERED]})
        self._historian.start()
        known = len(follower.reading.fingerprints)
        self._send(sender, (day for day in self._by_day if day > FIRST_OF_OCTOBER))
        self._wait_for_follower(follower, FLIGHTS)
        self._tail_tiers = self.node.bytes_by_tier()
        followed = len(follower.reading.fingerprints) - known
        say(f"{followed:,} messages followed at the tail meanwhile")
        local = read_whole(self.node.addresses["kafka"], {LOCAL: PARTITIONS[LOCAL]}, STEP_SECONDS_MAX)[LOCAL]
        wait_until(lambda: self._unreachable() > 0, "nobody asked S3 for the past", ASKED_SECONDS_MAX)
        self._run("split", "run", "--once")
        self._run("store", "merge", "--once")
        self._waiting = self._remote()["waiting_bytes"]
        say(f"{self._waiting / 1e6:.1f} MB wait for S3")
        return [
            Check(
                "without S3: produced, split, merged, and followed at the tail",
                not sender.refused and sender.acknowledged == sender.rows == FLIGHTS + sender.sent[LOCAL].rows,
                f"{followed:,} messages read as they came",
            ),
            Check(
                "without S3: a local topic is read as ever",
                local.digests() == sender.sent[LOCAL].digests(),
                f"{len(local.fingerprints):,} messages",
            ),
            Check(
                "without S3: who asks for the past waits, and what is to be moved adds up",
                self._historian.is_alive() and self._waiting > 0,
                f"{self._unreachable()} requests not answered; {self._waiting / 1e6:.1f} MB wait",
            ),
        ]

    def _catch_up(self, sender: Sender, follower: Follower) -> list[Check]:
        """S3 is back."""
        self._s3.come_back()
        say("S3 is back, with all its objects")
        self._historian.join(STEP_SECONDS_MAX)
        found = self._historian.reading(TIERED)
        say(f"who waited for the past has read {len(found.fingerprints):,} messages")
        self._run("store", "tier", "--once")
        left = self._remote()["waiting_bytes"]
        told = self._wait_for_local_copies_to_go()
        self._year = self._reader.read("the whole year from S3")
        again = self._year[TIERED]
        tiers = self._reader.served["the whole year from S3"]
        return [
            Check(
                "S3 came back, and whoever had waited read on",
                found.is_exactly(sender.sent[TIERED]) and len(found.fingerprints) == FLIGHTS,
                f"{len(found.fingerprints):,} messages, no gap, nothing twice",
            ),
            Check(
                "the rest moved, and the disk is free of it",
                left == 0 == told["local"],
                f"{told['remote'] / 1e6:.1f} MB in S3, {self._waiting / 1e6:.1f} MB of them had waited",
            ),
            Check(
                "the whole year, from S3: every message at its offset",
                again.is_exactly(sender.sent[TIERED])
                and again.fingerprints == found.fingerprints == follower.reading.fingerprints
                and len(again.fingerprints) == FLIGHTS,
                f"{len(again.fingerprints):,} messages, as they were followed and as they were waited for",
            ),
            Check(
                "it did come from S3",
                tiers.get("remote", 0) > told["remote"] * 0.9,
                f"{tiers.get('remote', 0) / 1e6:.1f} MB of batches",
            ),
        ]

    def _send(self, sender: Sender, days: Iterable[str]) -> None:
        """Send the flights of these days, each with a time of its day."""
        started, rows, pace = time.monotonic(), sender.rows, Pace(FLIGHTS_PER_SECOND)
        for day in days:
            flights, midnight = self._by_day[day], _midnight_ms(day)
            for number, flight in enumerate(flights):
                pace.wait()
                sender.send(TIERED, flight.key, flight.value, midnight + DAY_MS * number // len(flights))
        sender.flush()
        say(f"{sender.rows - rows:,} flights up to {day} acknowledged in {time.monotonic() - started:.1f} s")

    def _wait_for_follower(self, follower: Follower, flights: int) -> None:
        def all_seen() -> bool:
            if follower.fault is not None:
                raise DemoFailed(f"the consumer at the tail failed: {follower.fault}")
            return len(follower.reading.fingerprints) == flights

        wait_until(all_seen, f"the consumer at the tail did not read all {flights:,} flights", STEP_SECONDS_MAX)

    def _wait_for_split(self) -> None:
        def all_split_and_pruned() -> bool:
            lagging = any(group["lag_bytes"] for group in self.node.view("/v1/split")["groups"].values())
            topics = self.node.view("/v1/topics")["topics"]
            return not lagging and not sum(topic["unsplit_bytes"] for topic in topics if topic["name"] in PARTITIONS)

        wait_until(all_split_and_pruned, "not everything was split and pruned", STEP_SECONDS_MAX)
        say("Spark has split all that")

    def _wait_for_local_copies_to_go(self) -> dict[str, int]:
        """The bytes of the tiered topic on either tier, when nothing of it is local any more."""
        wait_until(lambda: not self._bytes()["local"], "local copies did not go", STEP_SECONDS_MAX)
        return self._bytes()

    def _bytes(self) -> dict[str, int]:
        """Of the tiered topic's batches, on disk 2 and in the store."""
        (usage,) = self.node.view(f"/v1/store/usage/{TIERED}")["topics"]
        return {"local": int(usage["stored_bytes"]), "remote": int(usage["remote_bytes"])}

    def _remote(self) -> Any:
        return self.node.view("/v1/store")["remote"]

    def _unreachable(self) -> int:
        """Requests to S3 that failed since the node started."""
        return self.node.object_store_requests("unavailable")

    def _run(self, *command: str) -> None:
        started = time.monotonic()
        run(*command, "--http", self.node.addresses["http"])
        say(f"mainstem {' '.join(command)}: {time.monotonic() - started:.1f} s")


class PatientReader(threading.Thread):
    """Reads whole topics in a thread, however long that takes."""

    def __init__(self, bootstrap: str, partitions: Mapping[str, int]) -> None:
        super().__init__(daemon=True)
        self._address = bootstrap
        self._partitions = partitions
        self._readings: dict[str, Reading] | None = None
        self._fault: Exception | None = None

    def run(self) -> None:
        try:
            self._readings = read_whole(self._address, self._partitions, SECONDS_MAX)
        except Exception as error:
            self._fault = error  # for the story's thread, which ends the demo with it

    def reading(self, topic: str) -> Reading:
        """The messages read. Raises DemoFailed."""
        if self._readings is None:
            raise DemoFailed(f"who waited for the past did not read it: {self._fault or 'it waits still'}")
        return self._readings[topic]


def _midnight_ms(day: str) -> int:
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1000


def _told(counts: Counts) -> str:
    """Requests, as a sentence's end."""
    requests = Counter(counts.requests).most_common()
    return ", ".join(f"{count} {name}" for name, count in requests) or "no request"


if __name__ == "__main__":
    sys.exit(main())
