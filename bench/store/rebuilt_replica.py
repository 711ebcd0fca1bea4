"""The cost of a new replica: bytes that it is sent, and seconds until it votes, with a shared store and with local
ones.

    python -m bench.store.rebuilt_replica
    python -m bench.store.rebuilt_replica --only shared --gigabytes 1000
    python -m bench.store.rebuilt_replica --only local --local-mebibytes 512

Three nodes, each a process with disks of its own. With a shared store, some messages are split as a splitter does it;
then runs of 256 MiB are announced, written and recorded, until the store has `--gigabytes`. Their batches are holes
(`hollow_runs.py`), as no node reads them: what nodes keep and send of such a store is what it would be. With local
stores all of `--local-mebibytes` is real, and every node splits its own copy.

Then a Kafka client sends `--tail-mebibytes` more, which nobody splits. Node 3 is killed for good, and node 4 takes its
place with empty disks. Its process counts what comes to it by RPC (`counted_node.py`), from its first byte until all
write groups have its vote and it lacks nothing. Last, node 1 is killed too, and a client reads all of the tail: that
needs node 4.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy

from bench.errors import BenchError
from bench.nodes.counted_node import received
from bench.nodes.members import Member, leaders, start_members, wait_until
from bench.store.hollow_runs import hollow_run_name, write_hollow_run
from bench.store.plain_splitter import PlainSplitter
from bench.store.reads.remote_requests import mainstem
from bench.systems.system import free_ports
from mainstem.pipeline.errors import NamesRefused
from mainstem.pipeline.link.lease_keeper import LeaseKeeper
from mainstem.pipeline.link.node_link import NodeLink, find_endpoint
from mainstem.pipeline.slices.split_slice import SplitSlice
from mainstem.rpc.messages.split import FileDescription, WriteGroupRange
from mainstem.storage.extents.extent_format import EXTENT_ROW, FRAME_BYTES, RUN_MAGIC, FileFrame
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.store_file import path_of

MIB = 1 << 20
GIGABYTE = 1e9
LOST, NEW = 3, 4
STORED, TAIL = "stored", "tail"
PARTITIONS = 64
"""Enough that every write group has some."""
RECORD_BYTES = 1024
RUN_BYTES = 64 * MIB
REAL_MIB = 64
"""Split as usual before a shared store is filled with holes."""
LEASE_WAIT_SECONDS = 20.0
RUNS_AT_ONCE = 16
"""Of each write group under one lease."""
REBUILT_SECONDS_MAX = 120.0
SETTINGS = {
    "pipeline.mode": "off",
    "journal.segment_age_seconds": "1",
    "storage.checkpoint_seconds": "1",
    "storage.prune_seconds": "0.3",
    "storage.retention_check_seconds": "3600",
}
"""The splits are the bench's own; what is split leaves the journal at once, as it has in an old cluster, so that the
log alone cannot make a replica whole."""


class Rebuilt(NamedTuple):
    """The cost. All sizes in bytes."""

    stored: int
    """Batches that were split."""
    files: int
    """Of the queue store, that count for some write group."""
    tail: int
    """Journal bytes of blocks that were not split."""
    received: int
    """By the new node, over RPC."""
    log: int
    """Of these, blocks and other entries of logs."""
    copied_files: int
    """Of these, content of files of the queue store."""
    from_store: int
    """Besides, by the new node from the object store."""
    snapshots: int
    seconds: float
    """From the command until it votes everywhere and lacks nothing."""

    @property
    def rows(self) -> int:
        """State, descriptions of files, heartbeats, the metadata: what is neither log nor content."""
        return self.received - self.log - self.copied_files

    def lines(self, name: str) -> Iterator[str]:
        stored = self.stored / GIGABYTE
        yield (
            f"{name}: {stored:,.1f} GB stored in {self.files:,} files; a new replica was sent {self.received:,} bytes "
            f"in {self.seconds:.1f} s"
        )
        yield f"    {self.log:>15,} of logs: {self.log / self.tail:.3f} times the unsplit tail of {self.tail:,}"
        yield f"    {self.copied_files:>15,} of files: {self.copied_files / self.stored:.3f} times what is stored"
        yield (
            f"    {self.rows:>15,} of everything else, rows, state and heartbeats: {self.rows / stored:,.0f} per GB, "
            f"{self.rows / max(1, self.files):,.0f} per file"
        )
        yield f"    {self.from_store:>15,} more came from the object store; {self.snapshots} snapshots were installed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("shared", "local"))
    parser.add_argument("--gigabytes", type=float, default=100, help="in the shared store")
    parser.add_argument("--file-mebibytes", type=int, default=256, help="of each file of the shared store")
    parser.add_argument("--local-mebibytes", type=int, default=2048, help="in the local stores, each")
    parser.add_argument("--tail-mebibytes", type=int, default=100)
    options = parser.parse_args()
    if options.only != "local":
        with tempfile.TemporaryDirectory() as directory:
            story = SharedStory(Path(directory), int(options.gigabytes * GIGABYTE), options.file_mebibytes * MIB)
            print(*story.tell(options.tail_mebibytes).lines("a shared store"), sep="\n", flush=True)
    if options.only != "shared":
        with tempfile.TemporaryDirectory() as directory:
            local = LocalStory(Path(directory), options.local_mebibytes)
            print(*local.tell(options.tail_mebibytes).lines("local stores"), sep="\n", flush=True)


class Story(ABC):
    """How a replica is lost and rebuilt, whatever store there is."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.settings = {**SETTINGS, **settings}
        self.members: list[Member] = []

    def tell(self, tail_mebibytes: int) -> Rebuilt:
        """Raises BenchError. Nothing runs any more when it returns."""
        self.members = start_members(self.directory, 3, self.settings)
        try:
            for topic in (STORED, TAIL):
                mainstem("topic", "create", topic, "--partitions", str(PARTITIONS), "--bootstrap", self._bootstrap)
            stored = self.fill()
            wait_until(self._is_pruned, "journals still have what is split")
            records = tail_mebibytes * MIB // RECORD_BYTES
            self.produce(TAIL, records)
            return self._rebuilt(stored, records)
        finally:
            for member in self.members:
                member.kill()

    @abstractmethod
    def fill(self) -> int:
        """Send messages and have them split. Returns how many bytes of batches are split."""

    @abstractmethod
    def files(self) -> int:
        """The number of the queue store's files, of all write groups."""

    @property
    def _bootstrap(self) -> str:
        return ",".join(member.kafka for member in self.members)

    def produce(self, topic: str, records: int) -> None:
        mainstem("bench", "produce", "--topic", topic, "--records", str(records), "--record-bytes", str(RECORD_BYTES),
                 "--keep", "--bootstrap", self._bootstrap)  # fmt: skip

    def _is_pruned(self) -> bool:
        groups = [group for member in self.members for group in member.get("/v1/split")["groups"].values()]
        return all(group["pruned"] and not group["lag_bytes"] for group in groups)

    def _rebuilt(self, stored: int, records: int) -> Rebuilt:
        tail = unsplit_bytes(self.members)
        peers = {member.node_id: member.rpc for member in self.members}
        lost = self.members.pop(LOST - 1)
        lost.kill()
        count = self.directory / "received"
        addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        new = Member(NEW, self.directory / f"node-{NEW}", addresses, peers, self.settings,
                     ("bench.nodes.counted_node", str(count)))  # fmt: skip
        self.members.append(new)
        new.await_started(3)
        first = self.members[0]
        sent = sum(member.metric("mainstem_snapshots_sent_bytes_total") for member in self.members)
        began = time.monotonic()
        mainstem("cluster", "replace", str(LOST), str(NEW), "--http", first.http, "--token", first.token)
        wait_until(lambda: is_rebuilt(first), f"node {NEW} has not taken the place of node {LOST}", REBUILT_SECONDS_MAX)
        seconds = time.monotonic() - began
        rebuilt = Rebuilt(
            stored=stored,
            files=self.files(),
            tail=tail,
            received=received(count).all,
            log=int(new.metric("mainstem_raft_exchange_received_bytes_total")),
            copied_files=int(sum(one.metric("mainstem_snapshots_sent_bytes_total") for one in self.members) - sent),
            from_store=int(new.metric("mainstem_object_store_received_bytes_total")),
            snapshots=int(new.metric("mainstem_snapshots_installed_total")),
            seconds=seconds,
        )
        if not rebuilt.snapshots:
            raise BenchError("the log alone made the replica whole: nothing was learned of snapshots")
        first.kill()
        self.members.remove(first)
        read = json.loads(
            mainstem("bench", "consume", "--topic", TAIL, "-n", str(records), "--json", "--bootstrap", self._bootstrap)
        )
        if read["records"] != records:
            raise BenchError(f"{read['records']} of {records} records of the tail were read")
        return rebuilt


class LocalStory(Story):
    """Every node has a queue store of its own."""

    def __init__(self, directory: Path, mebibytes: int) -> None:
        super().__init__(directory)
        self._mebibytes = mebibytes
        self._files = 0

    def fill(self) -> int:
        self.produce(STORED, self._mebibytes * MIB // RECORD_BYTES)
        split_bytes = 0
        for member in self.members:
            with PlainSplitter(member.http, RUN_BYTES) as splitter:
                splitter.split(merging=False)
                split_bytes, self._files = splitter.taken_bytes, splitter.runs
        return split_bytes

    def files(self) -> int:
        return self._files


class SharedStory(Story):
    """All nodes have the same queue store, a directory."""

    def __init__(self, directory: Path, stored_bytes: int, file_bytes: int) -> None:
        self._store = directory / "shared"
        super().__init__(directory, store_dir=str(self._store), shared_store="true")
        self._store.mkdir(parents=True)  # nodes take no directory that they find missing: it is mounted
        self._stored_bytes = stored_bytes
        self._file_bytes = file_bytes
        self._files = 0

    def fill(self) -> int:
        self.produce(STORED, REAL_MIB * MIB // RECORD_BYTES)
        stored = 0
        for member in self.members:
            with PlainSplitter(member.http, RUN_BYTES) as splitter:
                splitter.split(merging=False)
                stored += splitter.taken_bytes
                self._files += splitter.runs
        while stored < self._stored_bytes:
            led: dict[int, list[int]] = defaultdict(list)
            for group, leader in enumerate(leaders(self.members[0])):
                led[leader].append(group)
            before = stored
            for member in self.members:
                stored += self._hollow_runs(member, led[member.node_id], self._stored_bytes - stored)
            if stored == before:
                raise BenchError("no leader takes any run")
        return stored

    def files(self) -> int:
        return self._files

    def _hollow_runs(self, leader: Member, groups: Sequence[int], bytes_max: int) -> int:
        """Write and record some runs of each of these write groups, at least one, until there are so many bytes."""
        endpoint = find_endpoint(leader.http)
        assert endpoint.shared_store is not None, "the store is shared"
        root = self._store / endpoint.shared_store.folder
        node = NodeLink(endpoint.rpc, "bench: hollow runs")
        lease = node.acquire("bench", wait_seconds=LEASE_WAIT_SECONDS, yields=False)
        stored = 0
        try:
            classes = node.retention_classes()
            queues = {group: queues_of(root, group) for group in groups}
            with LeaseKeeper(NodeLink(endpoint.rpc, "bench: lease"), lease) as keeper:
                for group in sorted(queues) * RUNS_AT_ONCE:
                    if stored >= bytes_max:
                        break
                    queue_ids, first_offset = queues[group]
                    name = hollow_run_name(self._files)
                    try:
                        node.intend(group, [name])
                    except NamesRefused:  # another node leads it by now
                        continue
                    file = write_hollow_run(
                        root / object_of(group, path_of(name)), name, group, queue_ids,
                        first_offset + self._files * self._file_bytes, self._file_bytes,
                        int(time.time() * 1000), classes[queue_ids[0] >> 32],
                    )  # fmt: skip
                    if recorded(node, keeper, group, file):
                        stored += file.batch_bytes
                        self._files += 1
        finally:
            node.close()
        return stored


def recorded(node: NodeLink, keeper: LeaseKeeper, group: int, file: FileDescription) -> bool:
    """Have the leader of a write group record a file for all of its blocks that are not split. Returns whether it did:
    it does not where another node leads the group by now."""
    (at,) = [one for one in node.positions().groups if one.group == group]
    ranges = (WriteGroupRange(group, at.split, at.committed),)
    done = SplitSlice(ranges=ranges, files=(file,), bytes=0, batches=file.batch_count, dropped_batches=0, seconds=0.0)
    return node.record_split(keeper.held, done) == ["committed"]


def queues_of(root: Path, group: int) -> tuple[list[int], int]:
    """The queues of a write group in the runs that lie in a shared store, ascending, and an offset behind all of
    theirs. Raises BenchError where it has none."""
    runs = sorted((root / object_of(group, "runs")).glob("*.run"))
    if not runs:
        raise BenchError(f"write group {group} has no queue with messages")
    rows = numpy.concatenate([index_of(run) for run in runs])
    return [int(queue_id) for queue_id in numpy.unique(rows["queue_id"])], int(rows["last_offset"].max()) + 1


def index_of(run: Path) -> numpy.typing.NDArray[numpy.void]:
    """The rows of a run's index."""
    with run.open("rb") as file:
        file.seek(-FRAME_BYTES, 2)
        footer = FileFrame.unpack(file.read(), RUN_MAGIC, run.name)
        file.seek(footer.rows_position)
        return numpy.frombuffer(file.read(footer.row_count * EXTENT_ROW.itemsize), EXTENT_ROW)


def unsplit_bytes(members: Sequence[Member]) -> int:
    """Of all write groups, each as whoever knows most of it says."""
    found: dict[int, int] = defaultdict(int)
    for member in members:
        node = NodeLink(member.rpc, "bench: tail")
        try:
            for one in node.positions().groups:
                found[one.group] = max(found[one.group], one.unsplit_bytes)
        finally:
            node.close()
    return sum(found.values())


def is_rebuilt(asked: Member) -> bool:
    """Tell whether every write group has the vote of the new node, not that of the lost one, and the new node lacks
    nothing."""
    groups = asked.get("/v1/cluster")["write_groups"]
    return bool(groups) and all(is_whole(group["replicas"]) for group in groups)


def is_whole(replicas: Sequence[dict[str, int]]) -> bool:
    """Tell whether this is so of one write group, by the replicas that its leader names."""
    voters = {replica["node"] for replica in replicas if replica["voter"] and replica["active"]}
    return NEW in voters and not any(one["node"] == LOST or one["lag_blocks"] for one in replicas)


if __name__ == "__main__":
    main()
