"""The demo's second chapter: what was split becomes the long-term store.

`mainstem store merge --once` makes packed files of the runs, `mainstem store compact --once` leaves the latest record
of each aircraft. After each of them the node is started anew and all is read again from disk 2. At the end `mainstem
store usage` shows who takes how much room, and `mainstem store verify` reads every byte of the store.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from demo.cold_reader import ColdReader
from demo.commands import run
from demo.messages.fleet import Fleet, compare
from demo.messages.ledger import Reading
from demo.node_process import NodeProcess
from demo.summary import Check, say, show

RUN = "run"
"""The kind of files that the split writes, as the node calls it."""


class LongTerm:
    """Merge, compaction and their proofs; `tell` goes through them and leaves the node stopped."""

    def __init__(self, node: NodeProcess, reader: ColdReader, fleet: Fleet, compacted: str) -> None:
        """`compacted`: the topic that has the states of the fleet."""
        self._node = node
        self._reader = reader
        self._fleet = fleet
        self._compacted = compacted

    def tell(self, split: Mapping[str, Reading]) -> list[Check]:
        """`split`: all topics as they were read from runs. Raises DemoFailed, NodeFailed, TimeoutError."""
        checks = [*self._merge(split), *self._compact(split)]
        show("mainstem store usage", run("store", "usage", "--http", self._node.addresses["http"]))
        self._node.stop()
        return [*checks, self._verify()]

    def _merge(self, split: Mapping[str, Reading]) -> list[Check]:
        runs = self._files()
        run("store", "merge", "--once", "--http", self._node.addresses["http"])
        merged = self._files()
        say(f"mainstem store merge --once: {_told(runs)} became {_told(merged)}")
        again = self._reader.read("all of it, merged")
        return [
            Check(
                "Spark merged all runs into fewer files",
                runs[RUN] > 0 and not merged[RUN] and 0 < merged.total() < runs.total(),
                f"{_told(runs)} became {_told(merged)}",
            ),
            Check(
                "merged, every message is where it was",
                all(_is_same(again[topic], split[topic]) for topic in split),
                f"{_messages(again):,} messages and offsets compared with the reading of the runs",
            ),
        ]

    def _compact(self, split: Mapping[str, Reading]) -> list[Check]:
        size = self._bytes()
        run("store", "compact", "--once", "--http", self._node.addresses["http"])
        size_left = self._bytes()
        before = split[self._compacted]
        say(f"mainstem store compact --once: {size / 1e6:.1f} MB of {self._compacted} became {size_left / 1e6:.1f} MB")
        again = self._reader.read("all of it, compacted")
        after = compare(before, again[self._compacted], self._fleet.states)
        others = {topic: reading for topic, reading in again.items() if topic != self._compacted}
        return [
            Check(
                f"{self._compacted}: compacted to the latest record per key",
                after.is_right and after.records < len(before.fingerprints),
                f"{len(before.fingerprints):,} records became {after.records:,}: {len(self._fleet.states):,} states as "
                f"computed here, {after.tombstones} tombstones left",
            ),
            Check(
                f"{self._compacted}: compaction gave its room back",
                0 < size_left < size,
                f"{size / 1e6:.2f} MB on disk 2 became {size_left / 1e6:.2f} MB",
            ),
            Check(
                "compaction left the other topics as they were",
                all(_is_same(reading, split[topic]) for topic, reading in others.items()),
                f"{_messages(others):,} messages of {len(others)} topics compared",
            ),
        ]

    def _verify(self) -> Check:
        report = json.loads(run("store", "verify", "--json", *self._node.directories, codes=(0, 1)))
        return Check(
            "the store is whole, every byte of it",
            report["ok"] and report["files"] > 0,
            f"mainstem store verify: {report['files']} files, {report['bytes'] / 1e6:.1f} MB, "
            f"{len(report['findings'])} faults",
        )

    def _files(self) -> Counter[str]:
        """Files of the queue store by kind."""
        files: Counter[str] = Counter()
        for level in self._node.view("/v1/store")["levels"]:
            files[level["kind"]] += level["files"]
        return files

    def _bytes(self) -> int:
        """Bytes of the compacted topic's batches on disk 2."""
        (usage,) = self._node.view(f"/v1/store/usage/{self._compacted}")["topics"]
        return int(usage["stored_bytes"])


def _told(files: Counter[str]) -> str:
    counted = [f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in files.items() if count]
    return " and ".join(counted) or "nothing"


def _messages(readings: Mapping[str, Reading]) -> int:
    return sum(len(reading.fingerprints) for reading in readings.values())


def _is_same(one: Reading, other: Reading) -> bool:
    """Whether both readings have the same messages at the same offsets, each once and in order."""
    return (
        one.fingerprints == other.fingerprints
        and one.digests() == other.digests()
        and not one.repeated + one.contradictions
    )
