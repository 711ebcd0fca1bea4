"""`make demo`: a year of flights through Mainstem, with a kill in the middle and Spark doing the split.

The story: a node starts on two empty directories. A Kafka client sends 336,776 flights, keyed by aircraft, while
a group of two consumers reads them; half-way the node is killed with SIGKILL and started again. Spark splits the
journal into runs and the node prunes it. Then the node is restarted, so that its memory is empty, and everything
is read again, from the queue store alone. Exit code 0 only if every check at the end holds.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from demo.data import FLIGHTS, DataMissing, FlightData, fetch
from demo.ledger import Reading, Sent
from demo.node_process import NodeFailed, NodeProcess
from demo.readers import GroupMember, read_whole
from mainstem.pipeline.java import find_java, spark_missing

TOPICS = {"flights": 48, "airlines": 2, "airports": 4}
"""Name -> partitions."""
GROUP = "departures-board"
DATA_DIRECTORY = Path(".demo")

FLIGHTS_PER_SECOND = 30_000
"""The flow is held at this pace, so that readers and the splitter are at work while it flows, and the kill hits
all of them."""

CONTROL_BLOCKS_LEFT_MAX = 4
"""The newest segment is never pruned; a commit of each of the last triggers may lie in it."""

SECONDS_MAX = 170
"""The demo's promise is three minutes; past this it gives up and says where it stood."""

NODE_SETTINGS: dict[str, object] = {
    # Small data on a short time: split early and often, in small segments, with little held in memory.
    "pipeline.start_bytes": 1 << 20,
    "pipeline.start_age_seconds": 1,
    "pipeline.trigger_seconds": 1,
    "journal.segment_bytes": 8 << 20,
    "journal.segment_age_seconds": 5,
    "storage.prune_seconds": 0.5,
}

console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)


class DemoFailed(Exception):
    """Something did not happen in time; the message says what."""


class Check(NamedTuple):
    claim: str
    holds: bool
    evidence: str


def main() -> int:
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(SECONDS_MAX)
    if missing := " ".join(filter(None, (find_java().missing, spark_missing()))):
        console.print(f"[red]The demo needs Spark:[/] {missing}")
        return 1
    directory = Path(tempfile.mkdtemp(prefix="mainstem-demo-"))
    node = NodeProcess(directory, NODE_SETTINGS)
    started = time.monotonic()
    try:
        checks = Story(node, fetch(DATA_DIRECTORY)).tell()
    except (DataMissing, NodeFailed, DemoFailed, TimeoutError) as error:
        console.print(f"[red]The demo failed:[/] {error}")
        return 1
    finally:
        node.end()
        shutil.rmtree(directory, ignore_errors=True)
    table = Table("", "claim", "evidence", title=f"Flights through Mainstem, {time.monotonic() - started:.0f} s")
    for check in checks:
        table.add_row("[green]true[/]" if check.holds else "[red]FALSE[/]", check.claim, check.evidence)
    console.print(table)
    return 0 if all(check.holds for check in checks) else 1


class Story:
    """The demo's steps over one node; `tell` goes through them and returns what they proved."""

    def __init__(self, node: NodeProcess, data: FlightData) -> None:
        self._node = node
        self._data = data
        self._sent = {topic: Sent() for topic in TOPICS}
        self._refused: list[str] = []
        self._followed = Reading()
        self._split_progress: list[dict[str, Any]] = []
        self._flow_tiers: Counter[str] = Counter()
        """Bytes by tier that served the group, over both lives of the node."""

    def tell(self) -> list[Check]:
        seconds = self._node.start()
        _say(f"node ready after {seconds:.1f} s: Kafka at {self._node.addresses['kafka']}")
        self._create_topics()
        members = [GroupMember(self._node.addresses["kafka"], GROUP, "flights") for _ in range(2)]
        for member in members:
            member.start()
        for member in members:
            if not member.assigned.wait(30):
                raise DemoFailed("the group gave a member no partitions within 30 s")
        _say("two consumers have joined the group and wait")
        self._produce()
        self._follow_to_the_end(members)
        self._add_tiers()
        self._wait_for_split()
        groups = self._split()["groups"]
        self._node.stop()
        self._node.start()
        _say("node restarted with empty memory; reading everything again")
        again = read_whole(self._node.addresses["kafka"], TOPICS, seconds_max=60)
        after = self._node.bytes_by_tier()
        self._node.stop()
        return [
            *self._checks_of_sending(),
            *self._checks_of_group(again["flights"], members),
            *self._checks_of_split(groups),
            *self._checks_of_reading(again, after),
        ]

    def _create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._node.addresses["kafka"]})
        futures = admin.create_topics([NewTopic(name, count, 1) for name, count in TOPICS.items()])
        for future in futures.values():
            future.result(timeout=30)

    def _produce(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._node.addresses["kafka"],
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 20,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )
        started = time.monotonic()
        for topic, rows in (("airlines", self._data.airlines()), ("airports", self._data.airports())):
            for row in rows:
                self._send(producer, topic, row.key, row.value)
        pace = Pace(FLIGHTS_PER_SECOND)
        for row in self._data.flights():
            if self._sent["flights"].rows == FLIGHTS // 2:
                self._kill_and_restart()
            pace.wait()
            self._send(producer, "flights", row.key, row.value)
        if unsent := producer.flush(90):
            raise DemoFailed(f"{unsent} messages were not acknowledged within 90 s")
        rows = sum(sent.rows for sent in self._sent.values())
        _say(f"{rows:,} messages acknowledged in {time.monotonic() - started:.1f} s, the restart included")

    def _send(self, producer: Producer, topic: str, key: bytes, value: bytes) -> None:
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=self._delivered)
                break
            except BufferError:
                producer.poll(0.1)
        self._sent[topic].add(key, value)
        producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._refused.append(error.str())

    def _kill_and_restart(self) -> None:
        self._add_tiers()
        self._node.kill()
        _say("node killed with SIGKILL half-way, the client still sending")
        seconds = self._node.start()
        _say(f"node back after {seconds:.1f} s on the same directories and ports")

    def _add_tiers(self) -> None:
        self._flow_tiers.update(self._node.bytes_by_tier())

    def _follow_to_the_end(self, members: list[GroupMember]) -> None:
        def all_seen() -> bool:
            for member in members:
                if member.fault is not None:
                    raise DemoFailed(f"a consumer of the group failed: {member.fault}")
            places: set[tuple[int, int]] = set()
            for member in members:
                places.update(list(member.reading.fingerprints))
            return len(places) >= FLIGHTS

        _wait(all_seen, "the group did not read all flights", seconds_max=60)
        for member in members:
            member.stop()
            self._followed.merge(member.reading)
        counts = " and ".join(f"{len(member.reading.fingerprints):,}" for member in members)
        _say(f"the two members of the group read {counts} messages")

    def _wait_for_split(self) -> None:
        def all_split_and_pruned() -> bool:
            view = self._split()
            progress = view["last_progress"]
            known = [entry["timestamp"] for entry in self._split_progress]
            if progress is not None and progress["timestamp"] not in known:
                self._split_progress.append(progress)
                took = progress["duration_ms"].get("triggerExecution", 0)
                _say(
                    f"Spark batch {progress['batch_id']}: {progress['batches']} record batches, "
                    f"{progress['bytes'] / 1e6:.1f} MB in {took} ms ({progress['spark']})"
                )
            groups = view["groups"].values()
            if progress is None or any(group["lag_bytes"] or not _is_pruned(group) for group in groups):
                return False
            topics = self._node.view("/v1/topics")["topics"]
            return not any(topic["unsplit_bytes"] for topic in topics if topic["name"] in TOPICS)

        _say("waiting for Spark to split the journal")
        _wait(all_split_and_pruned, "not everything was split and pruned", seconds_max=110)

    def _split(self) -> Any:
        return self._node.view("/v1/split")

    def _checks_of_sending(self) -> list[Check]:
        sent = self._sent["flights"]
        return [
            Check("every message was acknowledged", not self._refused, f"{len(self._refused)} refused"),
            Check("the whole data set was sent", sent.rows == FLIGHTS, f"{sent.rows:,} of {FLIGHTS:,} flights"),
        ]

    def _checks_of_group(self, again: Reading, members: list[GroupMember]) -> list[Check]:
        followed = self._followed
        shares = [len(member.reading.fingerprints) for member in members]
        same = followed.fingerprints == again.fingerprints
        return [
            Check(
                "two consumers of a group shared the flow and missed nothing",
                same and all(shares),
                f"{' + '.join(f'{share:,}' for share in shares)}, {followed.repeated:,} repeated by the crash",
            ),
            Check(
                "an offset has one value on every path",
                same and not followed.contradictions and not again.contradictions,
                f"{len(again.fingerprints):,} offsets compared, journal or memory against queue store",
            ),
        ]

    def _checks_of_split(self, groups: dict[str, Any]) -> list[Check]:
        files = sum(group["files"] for group in groups.values())
        positions = ", ".join(f"{group['pruned']}/{group['committed']}" for group in groups.values())
        done_by = sorted({entry["spark"] for entry in self._split_progress})
        batches = sum(entry["batches"] for entry in self._split_progress)
        return [
            Check(
                "Spark split the journal into runs",
                bool(done_by) and batches > 0 and files > 0,
                f"{batches} record batches in {files} files by {', '.join(done_by) or 'nobody'}",
            ),
            Check(
                "the journal was pruned behind the split",
                all(_is_pruned(group) for group in groups.values()),
                f"pruned of committed blocks, per write group: {positions}",
            ),
        ]

    def _checks_of_reading(self, again: dict[str, Reading], after: dict[str, int]) -> list[Check]:
        checks = []
        for topic, sent in self._sent.items():
            reading = again[topic]
            exact = reading.digests() == sent.digests() and reading.repeated == 0 and reading.is_gapless()
            checks.append(
                Check(
                    f"{topic}: complete, in order per key, nothing twice",
                    exact and len(reading.fingerprints) == sent.rows,
                    f"{len(reading.fingerprints):,} messages, {len(reading.digests()):,} key digests equal",
                )
            )
        from_store = after.get("queue_store", 0) + after.get("read_cache", 0)
        elsewhere = sum(after.values()) - from_store
        alone = from_store > 0 and not elsewhere
        checks.append(Check("the last reading came from the queue store alone", alone, _tiers(after)))
        flow = self._flow_tiers
        checks.append(Check("while it flowed, memory served readers", flow["write_cache"] > 0, _tiers(flow)))
        return checks


def _is_pruned(group: dict[str, int]) -> bool:
    """Whether all but the last control blocks of a group, such as the split's own commit, left the journal."""
    return group["committed"] - group["pruned"] <= CONTROL_BLOCKS_LEFT_MAX


class Pace:
    """Holds a loop at so many turns per second."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._started = time.monotonic()
        self._turns = 0

    def wait(self) -> None:
        self._turns += 1
        ahead = self._turns / self._per_second - (time.monotonic() - self._started)
        if ahead > 0.01:
            time.sleep(ahead)


def _tiers(served: Mapping[str, int]) -> str:
    return ", ".join(f"{tier} {size / 1e6:.1f} MB" for tier, size in sorted(served.items()))


def _wait(reached: Callable[[], bool], otherwise: str, seconds_max: float) -> None:
    deadline = time.monotonic() + seconds_max
    while not reached():
        if time.monotonic() > deadline:
            raise DemoFailed(f"{otherwise} within {seconds_max:.0f} s")
        time.sleep(0.3)


def _say(text: str) -> None:
    console.print(f"[dim]·[/] {text}")


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise DemoFailed(f"not done within {SECONDS_MAX} s")


if __name__ == "__main__":
    sys.exit(main())
