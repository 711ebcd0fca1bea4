"""`make demo-shared`: a cluster whose whole history lies in an object store, and which goes on from there when its disk
is lost.

The story: an S3 server and a node start from nothing; the node has one disk, for its journal. A Kafka client sends the
flights of 2013 up to September. Spark splits them straight into S3 and merges them there; the node is started anew with
empty memory and everything is read back from S3. October comes, and is split, too. Then the node is killed and its disk
is emptied. `mainstem store adopt --serve` shows from S3 alone what there is, to readers only; `--into` makes a disk
for a node that goes on with the cluster: the topics are there, every message that was split is, and the rest of the
year goes behind them.
Exit code 0 only if every check at the end holds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import NewTopic
from tools.s3_server import S3Server

from demo.cold_reader import ColdReader
from demo.commands import run
from demo.errors import DemoFailed
from demo.messages.data import FLIGHTS, FlightData, fetch
from demo.messages.ledger import Reading
from demo.messages.readers import read_whole
from demo.messages.sender import Sender
from demo.node_process import NodeProcess
from demo.stage import create_topics, perform
from demo.summary import Check, say, show
from demo.waiting import Pace, wait_until

TOPICS = {"flights": 4, "airports": 2}
FLOWN = "flights"
AUTUMN, WINTER = "2013-10-01", "2013-11-01"
DATA_DIRECTORY = Path(".demo")

FLIGHTS_PER_SECOND = 20_000
STEP_SECONDS_MAX = 60.0

NODE_SETTINGS: dict[str, object] = {
    # Small data on a short time: split early and often, in small segments, and at once.
    "pipeline.start_bytes": 1 << 20,
    "pipeline.start_age_seconds": 1,
    "pipeline.nice": 0,
    "journal.segment_bytes": 8 << 20,
    "journal.segment_age_seconds": 2,
    "storage.prune_seconds": 0.5,
}


def main() -> int:
    return perform(_story)


def _story(directory: Path, s3: S3Server) -> SharedStory:
    node = NodeProcess(directory, {**NODE_SETTINGS, "object_store.endpoint": s3.endpoint}, _url(s3))
    return SharedStory(node, s3, fetch(DATA_DIRECTORY))


def _url(s3: S3Server) -> str:
    return f"s3://{s3.bucket}/shared"


class SharedStory:
    """The demo's steps over one node and its object store; `tell` goes through them and returns what they proved."""

    def __init__(self, node: NodeProcess, s3: S3Server, data: FlightData) -> None:
        self.node = node
        self._s3 = s3
        self._data = data
        self._reader = ColdReader(node, TOPICS, say)
        self._by_day = {
            day: list(flights)
            for day, flights in groupby(sorted(data.flights(), key=attrgetter("day")), attrgetter("day"))
        }

    def served(self) -> dict[str, Mapping[str, int]]:
        return self._reader.served

    def tell(self) -> list[Check]:
        seconds = self.node.start()
        say(f"S3 at {self._s3.endpoint}; node ready after {seconds:.1f} s: Kafka at {self.node.addresses['kafka']}")
        create_topics(self.node.addresses["kafka"], (NewTopic(name, count, 1) for name, count in TOPICS.items()))
        sender = Sender(self.node.addresses["kafka"], TOPICS, compression="none")
        checks = self._fill(sender)
        before = self._lose_the_disk(sender)
        return [*checks, self._show(before), *self._go_on(before)]

    def _fill(self, sender: Sender) -> list[Check]:
        """Nine months, split and merged in S3, and read back from there."""
        for row in self._data.airports():
            sender.send("airports", row.key, row.value)
        self._send(sender, (day for day in self._by_day if day < AUTUMN))
        self._wait_for_split()
        self._run("store", "merge", "--once")
        show("mainstem store usage", run("store", "usage", "--http", self.node.addresses["http"]))
        disk = sum(path.stat().st_blocks * 512 for path in self.node.write_dir.rglob("*") if path.is_file())
        again = self._reader.read("nine months from S3")
        remote = self._reader.served["nine months from S3"].get("remote", 0)
        return [
            Check(
                "Spark split and merged straight into S3: the node has one disk, and no history on it",
                not self.node.write_dir.with_name("disk2").exists() and not self._unsplit(),
                f"{remote / 1e6:.1f} MB of batches in S3, {disk / 1e6:.1f} MB of journal segments and state on disk 1",
            ),
            Check(
                "nine months read back from S3: complete, in order per key, nothing twice",
                all(again[topic].is_exactly(sender.sent[topic]) for topic in TOPICS) and remote > 0,
                f"{sum(len(reading.fingerprints) for reading in again.values()):,} messages",
            ),
        ]

    def _lose_the_disk(self, sender: Sender) -> dict[str, Reading]:
        """October; then nothing is left but S3. The messages read before that."""
        self._send(sender, (day for day in self._by_day if AUTUMN <= day < WINTER))
        self._wait_for_split()
        before = read_whole(self.node.addresses["kafka"], TOPICS, STEP_SECONDS_MAX)
        wait_until(self._is_chained, "the object store was not told of the last split", STEP_SECONDS_MAX)
        self.node.kill()
        shutil.rmtree(self.node.write_dir)
        say("the node is killed, and its disk is empty")
        return before

    def _show(self, before: Mapping[str, Reading]) -> Check:
        """A node that shows what S3 has."""
        command = [sys.executable, "-m", "mainstem.cli.main", "store", "adopt", _url(self._s3), "--serve"]
        command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--rpc", "127.0.0.1:0"]
        command += [f"--set=object_store.endpoint={self._s3.endpoint}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                if not line.startswith("ready "):
                    raise DemoFailed(f"mainstem store adopt --serve did not start: {line}")
                address = dict(field.split("=", 1) for field in line.split()[1:])["kafka"]
                say(f"mainstem store adopt --serve: Kafka at {address}")
                found = read_whole(address, TOPICS, STEP_SECONDS_MAX)
                refusal = _refusal(address)
            finally:
                process.terminate()
        return Check(
            "store adopt --serve: a second cluster reads all of it, and can change nothing",
            all(found[topic].fingerprints == before[topic].fingerprints for topic in TOPICS) and bool(refusal),
            f"{sum(len(one.fingerprints) for one in found.values()):,} messages; a producer is told {refusal}",
        )

    def _go_on(self, before: Mapping[str, Reading]) -> list[Check]:
        """The rest of the year, on a new disk."""
        told = run(
            "store", "adopt", _url(self._s3), "--into", str(self.node.write_dir),
            f"--set=object_store.endpoint={self._s3.endpoint}",
        )  # fmt: skip
        show("mainstem store adopt --into", told)
        self.node.start()
        sender = Sender(self.node.addresses["kafka"], TOPICS, compression="none")
        self._send(sender, (day for day in self._by_day if day >= WINTER))
        self._wait_for_split()
        self.node.set("pipeline.mode", "off")  # nothing is left to split
        after = self._reader.read("the whole year, after the loss")
        old, new = before[FLOWN].fingerprints, after[FLOWN].fingerprints
        behind = set(new) - set(old)
        ends: dict[int, int] = {}
        for partition, at in old:
            ends[partition] = max(at, ends.get(partition, -1))
        return [
            Check(
                "after the loss: every message that was split is there, at its offset",
                all(after[topic].fingerprints.get(place) == one for topic in TOPICS
                    for place, one in before[topic].fingerprints.items()),
                f"{sum(len(one.fingerprints) for one in before.values()):,} messages",
            ),
            Check(
                "the rest of the year lies behind them: no offset is given out twice",
                len(behind) == sender.sent[FLOWN].rows and all(at > ends[of] for of, at in behind)
                and not after[FLOWN].contradictions,
                f"{len(behind):,} flights behind offset {max(ends.values()):,} of the fullest partition",
            ),
            Check("the year is whole", len(new) == FLIGHTS, f"{len(new):,} flights of {FLIGHTS:,}"),
        ]  # fmt: skip

    def _send(self, sender: Sender, days: Iterable[str]) -> None:
        started, rows, pace = time.monotonic(), sender.rows, Pace(FLIGHTS_PER_SECOND)
        for day in days:
            for flight in self._by_day[day]:
                pace.wait()
                sender.send(FLOWN, flight.key, flight.value)
        sender.flush()
        say(f"{sender.rows - rows:,} messages up to {day} acknowledged in {time.monotonic() - started:.1f} s")

    def _wait_for_split(self) -> None:
        wait_until(lambda: not self._unsplit(), "not everything was split", STEP_SECONDS_MAX)
        say("Spark has split all that")

    def _unsplit(self) -> int:
        return sum(group["lag_bytes"] for group in self.node.view("/v1/split")["groups"].values())

    def _is_chained(self) -> bool:
        """Whether the store was told of all that counts in it."""
        return self.node.metric("mainstem_remote_chain_behind_changes") == 0

    def _run(self, *command: str) -> None:
        started = time.monotonic()
        run(*command, "--http", self.node.addresses["http"])
        say(f"mainstem {' '.join(command)}: {time.monotonic() - started:.1f} s")


def _refusal(address: str) -> str:
    """The error that a producer is told; empty: it was let in."""
    told: list[str] = []
    producer = Producer({"bootstrap.servers": address, "message.timeout.ms": 10_000, "log_level": 0})

    def delivered(error: KafkaError | None, message: object) -> None:
        if error is not None:
            told.append(error.name())

    producer.produce(FLOWN, b"too late", on_delivery=delivered)
    producer.flush(15)
    return told[0] if told else ""


if __name__ == "__main__":
    sys.exit(main())
