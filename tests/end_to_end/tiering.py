"""Moves the topics of a node to its remote tier, step by step and without Spark, and shows what is to be seen of them
then: by Kafka clients, in the node's manifest, and in the object store."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple

import msgspec
from bench.store.plain_splitter import PlainSplitter
from kafka import TopicPartition
from tests.clients.drivers import kafka_python
from tests.end_to_end.load import Queue, Record
from tests.end_to_end.readers import Reading
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

from mainstem.pipeline.link.lease_keeper import LeaseKeeper
from mainstem.pipeline.link.node_link import NodeLink, find_endpoint
from mainstem.pipeline.merge.merge_task import MergeSettings, input_file
from mainstem.pipeline.tier.tier_task import UploadDone, UploadFile, UploadWork, run_upload
from mainstem.ports import ObjectStore
from mainstem.rpc.messages.tier import MovingFile, TierWork
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.store_folder import StoreFolder
from mainstem.storage.object_stores.urls import parsed_url, plain_store
from mainstem.storage.remote.chain.chain_reading import read_chain
from mainstem.storage.remote.decided.remote_rows import INTENDED, LEAVING
from mainstem.storage.store_files.object_names import (
    OWNER,
    TOPIC_HEAD,
    change_object,
    file_objects,
    head_object,
    image_object,
    owner_object,
    topic_list_object,
)

RUN_BYTES = 64 << 20
LEASE_WAIT_SECONDS = 20.0
COUNTED = ("recorded", "kept")


def split_and_merge(node: Serving) -> None:
    """All that is committed now, on this node's own disk 2."""
    with PlainSplitter(node.http, RUN_BYTES) as splitter:
        splitter.split(merging=False)
        splitter.drain()


class UploadsByHand:
    """The steps of a splitter for the remote tier, one step at a time; made by `uploads_of`."""

    def __init__(self, node: NodeLink, keeper: LeaseKeeper, settings: MergeSettings) -> None:
        self._node = node
        self._keeper = keeper
        self._settings = settings

    def next(self) -> TierWork:
        """The log has the names of these files when it returns."""
        return self._node.tier_work(self._keeper.held, drain=True)

    def put(self, work: TierWork, files: Sequence[MovingFile]) -> UploadDone:
        """Upload some of the files, as an executor does."""
        config = msgspec.json.decode(work.store_config, type=ObjectStoreConfig)
        moving = tuple(
            UploadFile(input_file(self._settings, work.group, one.file.name), one.name, one.objects) for one in files
        )
        asked = UploadWork(settings=self._settings, store=work.store, config=config, files=moving)
        return msgspec.json.decode(run_upload(msgspec.json.encode(asked)), type=UploadDone)

    def hand_in(self, work: TierWork, done: UploadDone) -> str:
        return self._node.record_tier(self._keeper.held, work.tier_id, done.names, done.failure)


@contextmanager
def uploads_of(node: Serving) -> Iterator[UploadsByHand]:
    """Under the node's lease, which a node that dies meanwhile does not get back."""
    endpoint = find_endpoint(node.http)
    link = NodeLink(endpoint.rpc, "test: uploads")
    try:
        lease = link.acquire("test", wait_seconds=LEASE_WAIT_SECONDS, yields=False)
        settings = MergeSettings(rpc=endpoint.rpc, store_dir=endpoint.store_dir)
        with LeaseKeeper(NodeLink(endpoint.rpc, "test: lease"), lease) as keeper:
            yield UploadsByHand(link, keeper, settings)
    finally:
        link.close()


def upload_rest(node: Serving) -> str:
    """Upload all that may move of what this node leads. Why not all of it came to count; empty: it did."""
    with uploads_of(node) as uploads:
        while (work := uploads.next()).tier_id:
            done = uploads.put(work, work.files)
            outcome = uploads.hand_in(work, done)
            if done.failure or outcome not in COUNTED:
                return done.failure or outcome
        return work.failure


# --- what can be seen of it ---------------------------------------------------------------------------------


def tier_bytes(node: Serving, topic: str) -> tuple[int, int]:
    """Of the topic's batches: what this node has on its disks, pruned blocks left out, and what the remote tier has."""
    (usage,) = node.get(f"/v1/store/usage/{topic}")["topics"]
    (view,) = [one for one in node.get("/v1/topics")["topics"] if one["name"] == topic]
    return int(usage["stored_bytes"]) + int(view["unsplit_bytes"]), int(usage["remote_bytes"])


def unsplit_bytes(node: Serving) -> int:
    """Of all topics, on the node's disk 1, as far as they are not pruned."""
    return sum(int(topic["unsplit_bytes"]) for topic in node.get("/v1/topics")["topics"])


def local_files(node: Serving) -> dict[int, list[int]]:
    """Write group → the last blocks of the files that the node has on its disk 2."""
    found: dict[int, list[int]] = {}
    with closing(sqlite3.connect(f"file:{node.write_dir}/manifest.sqlite?mode=ro", uri=True)) as manifest:
        for group, upto in manifest.execute("SELECT write_group, upto FROM ranges"):
            found.setdefault(group, []).append(upto)
    return found


def considered(node: Serving) -> dict[int, int]:
    """Write group → the block up to which the remote tier has all."""
    groups = node.get("/v1/store")["remote"]["groups"]
    return {int(group): view["considered"] for group, view in groups.items()}


def files_uploaded(node: Serving) -> float:
    """Files that this node, as a leader, had come to count since it started."""
    return node.metric("mainstem_remote_copy_files_total")


def remote_bytes_read(node: Serving) -> float:
    """Of batches that clients were sent from the remote tier since the node started."""
    return node.metric("mainstem_fetch_bytes_total", tier="remote")


def read_by_kafka_python(bootstrap: str, ends: Mapping[Queue, int]) -> Reading:
    """Every queue from its beginning to the end given, and that nothing lies behind it."""
    reader = kafka_python.consumer(bootstrap)
    found: Reading = {queue: [] for queue in ends}
    queues = {TopicPartition(*queue): queue for queue in ends}
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        reader.assign(list(queues))
        for where in queues:
            reader.seek(where, 0)
        while sum(map(len, found.values())) < sum(ends.values()):
            for where, records in reader.poll(timeout_ms=200).items():
                found[queues[where]] += [Record(record.offset, record.key, record.value) for record in records]
            assert time.monotonic() < deadline, f"{ {queue: len(records) for queue, records in found.items()} } came"
        assert {queues[where]: end for where, end in reader.end_offsets(list(queues)).items()} == dict(ends)
    finally:
        reader.close()
    return found


class RemoteRows(NamedTuple):
    """The names that a node knows of the remote tier: (write group, name) each."""

    counted: set[tuple[int, str]]
    intended: set[tuple[int, str]]
    leaving: set[tuple[int, str]]


def remote_rows(node: Serving) -> RemoteRows:
    path = node.write_dir / "remote-manifest.sqlite"
    if not path.exists():
        return RemoteRows(set(), set(), set())
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as manifest:
        # The node makes the file first, and its tables in one step behind that.
        if not manifest.execute("SELECT 1 FROM sqlite_master WHERE name = 'ranges'").fetchone():
            return RemoteRows(set(), set(), set())
        counted = set(manifest.execute("SELECT DISTINCT write_group, name FROM ranges"))
        noted = manifest.execute("SELECT write_group, name, standing FROM remote_names").fetchall()
    intended, leaving = (
        {(group, name) for group, name, standing in noted if standing == wanted} for wanted in (INTENDED, LEAVING)
    )
    return RemoteRows(counted, intended, leaving)


class StoreView:
    """A cluster's folder of an object store, as somebody else sees it who has the rights to."""

    def __init__(self, url: str, config: ObjectStoreConfig, folder: str) -> None:
        """`url`: what the nodes' `remote_dir` is; `folder`: the cluster's id."""
        self._store = StoreFolder(plain_store(parsed_url(url), config), folder)

    def objects(self) -> set[str]:
        """The names of all objects of the cluster."""
        return asyncio.run(_listed(self._store))

    def counted(self, groups: Sequence[int]) -> set[tuple[int, str]]:
        """The files that count, as the chains of these write groups say: (write group, name)."""

        async def read() -> set[tuple[int, str]]:
            tiers = {group: await read_chain(self._store, group) for group in groups}
            return {(group, file.name) for group, tier in tiers.items() if tier for *_, file in tier.files}

        return asyncio.run(read())

    def superfluous(self, groups: Sequence[int], counted: set[tuple[int, str]]) -> set[str]:
        """The objects that belong neither to one of these files nor to what the chains need, and are neither lists of
        topics nor records of who owns the folder."""
        needed = {one for file in counted for one in file_objects(*file)}
        needed |= asyncio.run(_chains(self._store, groups))
        return {name for name in self.objects() - needed if not _is_of_no_group(name)}


async def _listed(store: ObjectStore) -> set[str]:
    found: list[str] = []
    while page := await store.page_for_upkeep("", found[-1] if found else ""):
        found += [listed.name for listed in page]
    return set(found)


def _is_of_no_group(name: str) -> bool:
    """Whether an object is the cluster's own, and no write group's."""
    if name in (OWNER, TOPIC_HEAD):
        return True
    number = name.rpartition("/")[2]
    return number.isdecimal() and name in (owner_object(int(number)), topic_list_object(int(number)))


async def _chains(store: ObjectStore, groups: Sequence[int]) -> set[str]:
    """The head of each write group, and changes and images from the first to the last; so few are all kept."""
    found: set[str] = set()
    for group in groups:
        tier = await read_chain(store, group)
        if tier is not None:
            numbers = range(1, tier.position.number + 1)
            found |= {make(group, number) for number in numbers for make in (change_object, image_object)}
            found.add(head_object(group))
    return found
