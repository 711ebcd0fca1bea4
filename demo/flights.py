"""`make demo`: a year of flights through Mainstem, with a kill in the middle, split, merged and compacted by Spark.

The story: a node starts on two empty directories. A Kafka client sends 336,776 flights, keyed by aircraft, and to a
compacted topic what each of them makes of its aircraft's state, while a group of two consumers reads the flights and
Spark splits; half-way the node is killed with SIGKILL and started again. When everything is split and the journal is
pruned, the node is restarted, so that its memory is empty, and all is read again, from the queue store alone. Then the
long-term store is made of it, and read again after each step (`long_term`). Exit code 0 only if every check at the end
holds.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from demo.cold_reader import ColdReader
from demo.errors import DemoFailed
from demo.long_term import LongTerm
from demo.messages.data import FLIGHTS, UNKNOWN, DataMissing, FlightData, fetch
from demo.messages.fleet import Fleet
from demo.messages.ledger import Reading
from demo.messages.readers import GroupMember
from demo.messages.sender import Sender
from demo.node_process import NodeFailed, NodeProcess
from demo.split_watch import SplitWatch
from demo.summary import Check, console, say, summary
from demo.waiting import Pace, give_up_after, wait_until
from mainstem.pipeline.spark.java import find_java, spark_missing

TOPICS = {"flights": 48, "aircraft": 6, "airlines": 2, "airports": 4}
"""Name -> partitions."""
COMPACTED = "aircraft"
CONFIGS = {COMPACTED: {"cleanup.policy": "compact", "delete.retention.ms": "0"}}
"""The first compaction that sees a tombstone may drop it: a day, Kafka's default, is longer than the demo."""
GROUP = "departures-board"
DATA_DIRECTORY = Path(".demo")

FLIGHTS_PER_SECOND = 12_000
"""The flow is held at this pace, half a minute in all: Spark takes ten seconds to start, and is to be at work
while messages flow. A flight makes two messages where its aircraft is known."""

SECONDS_MAX = 170
"""The demo's promise is three minutes; past this it gives up and says where it stood."""

NODE_SETTINGS: dict[str, object] = {
    # Small data on a short time: split early and often, in small segments, with little held in memory.
    "pipeline.start_bytes": 1 << 20,
    "pipeline.start_age_seconds": 1,
    "pipeline.trigger_seconds": 1,
    "pipeline.bytes_per_trigger": 4 << 20,
    # A busy machine leaves little of its processors to the split; the demo has three minutes, not all day.
    "pipeline.nice": 5,
    "journal.segment_bytes": 8 << 20,
    "journal.segment_age_seconds": 5,
    "storage.prune_seconds": 0.5,
}


class Crash(NamedTuple):
    """The moment at which the node was killed."""

    exit_code: int
    acknowledged: int
    in_flight: int

    def __str__(self) -> str:
        return f"{self.acknowledged:,} messages acknowledged, {self.in_flight:,} under way"


def main() -> int:
    give_up_after(SECONDS_MAX)
    if missing := " ".join(filter(None, (find_java().missing, spark_missing()))):
        console.print(f"[red]The demo needs Spark:[/] {missing}")
        return 1
    directory = Path(tempfile.mkdtemp(prefix="mainstem-demo-"))
    node = NodeProcess(directory, NODE_SETTINGS)
    started = time.monotonic()
    try:
        story = Story(node, fetch(DATA_DIRECTORY))
        checks = story.tell()
    except (DataMissing, NodeFailed) as error:
        console.print(f"[red]The demo failed:[/] {error}", soft_wrap=True)
        return 1
    except (DemoFailed, KafkaException, TimeoutError) as error:
        console.print(f"[red]The demo failed:[/] {error}\n{node.log_tail()}", soft_wrap=True)
        return 1
    finally:
        node.end()
        shutil.rmtree(directory, ignore_errors=True)
    return summary(checks, story.served(), time.monotonic() - started)


class Story:
    """The demo's steps over one node; `tell` goes through them and returns what they proved."""

    def __init__(self, node: NodeProcess, data: FlightData) -> None:
        self._node = node
        self._data = data
        self._fleet = Fleet()
        self._reader = ColdReader(node, TOPICS, say)
        self._followed = Reading()
        self._watch = SplitWatch(node, say)
        self._crash: Crash | None = None
        self._read_in_time: list[int] = []
        """By member: flights read before the last one was sent."""
        self._flow_tiers: Counter[str] = Counter()
        """Bytes by tier that served the group, over both lives of the node."""

    def tell(self) -> list[Check]:
        seconds = self._node.start()
        say(f"node ready after {seconds:.1f} s: Kafka at {self._node.addresses['kafka']}")
        self._create_topics()
        members = [GroupMember(self._node.addresses["kafka"], GROUP, "flights") for _ in range(2)]
        for member in members:
            member.start()
        for member in members:
            if not member.assigned.wait(30):
                raise DemoFailed("the group gave a member no partitions within 30 s")
        say("two consumers have joined the group and wait")
        self._watch.start()
        sender = self._produce(members)
        self._follow_to_the_end(members)
        self._add_tiers()
        self._wait_for_split()
        self._watch.stop()
        groups = self._split()["groups"]
        left, stored = self._bytes_in("unsplit_bytes"), self._bytes_in("stored_bytes")
        # All is split, and the embedded splitter rests from here on: commands merge and compact, in the story's order.
        self._node.set("pipeline.mode", "off")
        again = self._reader.read("all of it, from runs")
        long_term = LongTerm(self._node, self._reader, self._fleet, COMPACTED).tell(again)
        return [
            *self._checks_of_sending(sender),
            *self._checks_of_group(again["flights"], members),
            *self._checks_of_split(groups, left, stored),
            *self._checks_of_reading(sender, again),
            *long_term,
            *self._checks_of_tiers(),
        ]

    def served(self) -> dict[str, Mapping[str, int]]:
        """Reading -> bytes by tier."""
        return {"the group, while it flowed": self._flow_tiers, **self._reader.served}

    def _create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._node.addresses["kafka"], "log_level": 0})
        futures = admin.create_topics(
            [NewTopic(name, count, 1, config=CONFIGS.get(name, {})) for name, count in TOPICS.items()]
        )
        for future in futures.values():
            future.result(timeout=30)

    def _produce(self, members: list[GroupMember]) -> Sender:
        sender = Sender(self._node.addresses["kafka"], TOPICS)
        started = time.monotonic()
        for topic, rows in (("airlines", self._data.airlines()), ("airports", self._data.airports())):
            for row in rows:
                sender.send(topic, row.key, row.value)
        pace = Pace(FLIGHTS_PER_SECOND)
        for flight in self._data.flights():
            if sender.sent["flights"].rows == FLIGHTS // 2:
                self._kill_and_restart(sender)
            pace.wait()
            sender.send("flights", flight.key, flight.value)
            if flight.key not in UNKNOWN:
                sender.send(COMPACTED, flight.key, self._fleet.take(flight))
        self._read_in_time = [len(member.reading.fingerprints) for member in members]
        sender.flush()
        say(f"{sender.rows:,} messages acknowledged in {time.monotonic() - started:.1f} s, the restart included")
        return sender

    def _kill_and_restart(self, sender: Sender) -> None:
        self._add_tiers()
        code = self._node.kill()
        in_flight = sender.in_flight
        self._crash = Crash(code, sender.acknowledged, in_flight)
        say(f"node killed with SIGKILL half-way: {self._crash}")
        seconds = self._node.start()
        say(f"node back after {seconds:.1f} s on the same directories and ports")

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

        wait_until(all_seen, "the group did not read all flights", seconds_max=60)
        for member in members:
            member.stop()
            self._followed.merge(member.reading)
        counts = " and ".join(f"{len(member.reading.fingerprints):,}" for member in members)
        say(f"the two members of the group read {counts} messages")

    def _wait_for_split(self) -> None:
        def all_split_and_pruned() -> bool:
            lagging = any(group["lag_bytes"] for group in self._split()["groups"].values())
            return not lagging and self._bytes_in("unsplit_bytes") == 0

        say("waiting for Spark to split the rest, and for the journal to be pruned")
        wait_until(all_split_and_pruned, "not everything was split and pruned", seconds_max=110)

    def _bytes_in(self, disk: str) -> int:
        """Bytes of the demo's topics on a disk, as the node counts them: `unsplit_bytes` in the journal,
        `stored_bytes` in the queue store."""
        topics = self._node.view("/v1/topics")["topics"]
        return sum(topic[disk] for topic in topics if topic["name"] in TOPICS)

    def _split(self) -> Any:
        return self._node.view("/v1/split")

    def _checks_of_sending(self, sender: Sender) -> list[Check]:
        sent, rows = sender.sent["flights"].rows, sender.rows
        crash = self._crash
        return [
            Check("the whole data set was sent", sent == FLIGHTS, f"{sent:,} of {FLIGHTS:,} flights"),
            Check(
                "every message was acknowledged",
                not sender.refused and sender.acknowledged == rows,
                f"{sender.acknowledged:,} of {rows:,}, {len(sender.refused)} refused",
            ),
            Check(
                "the node was killed under way",
                crash is not None and crash.exit_code == -signal.SIGKILL and 0 < crash.acknowledged < rows,
                str(crash),
            ),
        ]

    def _checks_of_group(self, again: Reading, members: list[GroupMember]) -> list[Check]:
        followed = self._followed
        shares = [len(member.reading.fingerprints) for member in members]
        same = followed.fingerprints == again.fingerprints
        return [
            Check(
                "two consumers of a group read while it flowed",
                len(self._read_in_time) == 2 and all(self._read_in_time),
                f"{' + '.join(f'{count:,}' for count in self._read_in_time)} read before the last was sent",
            ),
            Check(
                "they shared the flow and missed nothing",
                same and all(shares),
                f"{' + '.join(f'{share:,}' for share in shares)}, {followed.repeated:,} repeated by the crash",
            ),
            Check(
                "an offset has one value on every path",
                same and not followed.contradictions and not again.contradictions,
                f"{len(again.fingerprints):,} offsets compared, journal or memory against queue store",
            ),
        ]

    def _checks_of_split(self, groups: dict[str, Any], left: int, stored: int) -> list[Check]:
        files = sum(group["files"] for group in groups.values())
        positions = ", ".join(f"{group['pruned']}/{group['committed']}" for group in groups.values())
        triggers = len(self._watch.progress)
        done_by = self._watch.done_by()
        return [
            Check(
                "Spark split the journal into runs",
                bool(done_by) and self._watch.batches() > 0 and files > 0,
                f"{self._watch.batches():,} record batches in {triggers} triggers seen, {files} files; "
                f"{', '.join(done_by) or 'nobody'}",
            ),
            Check(
                "the journal was pruned behind the split",
                left == 0 and stored > 0 and all(group["pruned"] > 0 for group in groups.values()),
                f"{left} bytes of the topics left there, {stored / 1e6:.1f} MB on disk 2; blocks {positions}",
            ),
        ]

    def _checks_of_reading(self, sender: Sender, again: dict[str, Reading]) -> list[Check]:
        checks = []
        for topic, sent in sender.sent.items():
            reading = again[topic]
            exact = reading.is_exactly(sent)
            checks.append(
                Check(
                    f"{topic}: complete, in order per key, nothing twice",
                    exact and len(reading.fingerprints) == sent.rows,
                    f"{len(reading.fingerprints):,} messages, {len(reading.digests()):,} key digests equal",
                )
            )
        return checks

    def _checks_of_tiers(self) -> list[Check]:
        served = self._reader.served.values()
        from_store = [tiers.get("queue_store", 0) + tiers.get("read_cache", 0) for tiers in served]
        elsewhere = sum(sum(tiers.values()) for tiers in served) - sum(from_store)
        from_memory = self._flow_tiers["write_cache"]
        return [
            Check(
                "after each restart the queue store alone was read",
                all(from_store) and not elsewhere,
                f"{' + '.join(f'{size / 1e6:.1f}' for size in from_store)} MB from disk 2, {elsewhere} bytes from "
                "elsewhere",
            ),
            Check("while it flowed, memory served readers", from_memory > 0, f"{from_memory / 1e6:.1f} MB"),
        ]


if __name__ == "__main__":
    sys.exit(main())
