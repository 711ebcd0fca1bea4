"""Tasks of a splitter whose node has a shared store: what they write, what they announce, and what stops them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.fakes.splitting.run_reader import read_run
from tests.fakes.splitting.split_log import SplitJournal
from tests.fakes.splitting.split_node import SplitNode
from tests.storage.object_stores.faulty_wire import Answer, Fault, FaultyWire, Seen, faulty_wire
from tools.s3_server import CREDENTIALS, s3_server

from mainstem.pipeline.errors import NamesRefused
from mainstem.pipeline.link.node_link import Endpoint
from mainstem.pipeline.main import merge_settings_of, parse
from mainstem.pipeline.main import settings_of as settings_for_splits
from mainstem.pipeline.merge.merge_task import (
    FilesDone,
    FilesWork,
    MeasureDone,
    MeasureWork,
    MergeJob,
    MergeSettings,
    input_file,
    run_files,
    run_measure,
)
from mainstem.pipeline.split.source import SlicePartition, split_partition
from mainstem.pipeline.split.split_plan import SplitSettings
from mainstem.rpc.wire.identity import host_identity
from mainstem.storage.merging.merge_inputs import RowRange
from mainstem.storage.merging.merge_measure import MergeTask
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import ObjectAbsent, ObjectStoreOutage
from mainstem.storage.shared_store.blocking_store import BlockingStore
from mainstem.storage.shared_store.shared_store import SharedStore
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.store_file import path_of

CLASSES = {0: "7d", 1: "forever"}


def shared_store(tmp_path: Path) -> SharedStore:
    return SharedStore(url=str(tmp_path / "objects"), folder="cluster")


def settings_of(node: SplitNode, store: SharedStore) -> SplitSettings:
    return SplitSettings(
        rpc=f"127.0.0.1:{node.port}",
        runs_dir="/nowhere",
        bytes_per_trigger=1 << 20,
        slice_bytes=1 << 20,
        shared_store=store,
    )


def slice_of(journal: SplitJournal) -> SlicePartition:
    journal.by_write_group = True
    for group in (0, 1):
        journal.append(group, [(group, b"a" * 200), (1 << 32 | group, b"b" * 200)])
    (work,) = journal.slices({}, {0: 1, 1: 1}, 1 << 20)
    return SlicePartition(0, work, host_identity())


def test_a_split_writes_announced_objects_of_one_write_group_each(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes=CLASSES)
    partition = slice_of(journal)
    with SplitNode(journal, tmp_path) as node:
        done = split_partition(partition, settings_of(node, shared_store(tmp_path)))
        assert node.announced == [
            (group, tuple(file.name for file in done.files if file.group == group)) for group in (0, 1)
        ]
    assert {(file.group, file.retention_class) for file in done.files} == {
        (group, name) for group in (0, 1) for name in CLASSES.values()
    }
    for file in done.files:
        path = tmp_path / "objects" / "cluster" / "groups" / str(file.group) / "files" / "runs" / file.name
        assert path.stat().st_size == file.bytes
        assert list(read_run(path)) == [file.first_queue]
    assert len([path for path in (tmp_path / "objects").rglob("*") if path.is_file()]) == 4


def test_a_split_whose_names_are_refused_or_whose_store_is_out_ends_and_leaves_nothing(tmp_path: Path) -> None:
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes=CLASSES)
    partition = slice_of(journal)
    with SplitNode(journal, tmp_path) as node:
        settings = settings_of(node, shared_store(tmp_path))
        with pytest.raises(ObjectStoreOutage, match="objects is no directory"):
            split_partition(partition, settings)
        (tmp_path / "objects").mkdir()
        node.refusal = "node 2 leads it"
        with pytest.raises(NamesRefused, match="2 files of write group 0: node 2 leads it"):
            split_partition(partition, settings)
        assert not list((tmp_path / "objects").iterdir())
        node.refusal = ""
        assert len(split_partition(partition, settings).files) == 4


def test_a_merge_whose_store_is_out_has_failed_and_no_input_is_damaged(tmp_path: Path) -> None:
    with SplitNode(SplitJournal(tmp_path, segment_bytes=1 << 20, classes=CLASSES), tmp_path) as node:
        rpc = f"127.0.0.1:{node.port}"
        settings = MergeSettings(rpc=rpc, store_dir="/nowhere", shared_store=shared_store(tmp_path))
        source = input_file(settings, 3, "a.run")
        assert source.path == source.index_path == "groups/3/files/runs/a.run"
        job = MergeJob(
            settings=settings, merge_id="m", group=3, level=1, inputs=(source,), packed_bytes=1, task_bytes=1
        )
        measured = msgspec.json.decode(run_measure(msgspec.json.encode(MeasureWork(job, {}))), type=MeasureDone)
        task = MergeTask((), (RowRange(0, 0, 1, 0),))
        written = msgspec.json.decode(run_files(msgspec.json.encode(FilesWork(job, task))), type=FilesDone)
    for done in (measured, written):
        assert done.damage is None
        assert "objects is no directory" in done.failure


def test_what_is_told_to_spark_has_no_secrets() -> None:
    store = SharedStore(url="s3://b", folder="f", config=ObjectStoreConfig(options={"secret_access_key": "hush"}))
    endpoint = Endpoint(host="h", port=1, store_dir="/cache", shared_store=store)
    options = parse(["--node", "http://127.0.0.1:1"])
    settings = settings_for_splits(options, endpoint), merge_settings_of(options, endpoint)
    assert b"hush" not in msgspec.json.encode(settings)
    assert [one.shared_store for one in settings] == [SharedStore(url="s3://b", folder="f")] * 2


@contextmanager
def wire_to(endpoint: str) -> Iterator[FaultyWire]:
    """A proxy in a thread of its own: tasks block."""
    host, _, port = endpoint.removeprefix("http://").partition(":")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    proxy = faulty_wire((host, int(port)))
    try:
        wire = asyncio.run_coroutine_threadsafe(proxy.__aenter__(), loop).result()
        yield wire
        asyncio.run_coroutine_threadsafe(proxy.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class FirstUploadFails:
    """Every part of the object that is uploaded first is refused, however often it is sent."""

    def __init__(self) -> None:
        self.objects: list[str] = []
        """That parts came of, in this order."""

    def __call__(self, seen: Seen) -> Fault | None:
        name, _, query = seen.target.partition("?")
        if seen.method != "PUT" or "partNumber" not in query:
            return None
        if name not in self.objects:
            self.objects.append(name)
        return Answer(500, "InternalError") if name == self.objects[0] else None


def test_a_split_whose_upload_breaks_off_writes_its_runs_once_more(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    journal = SplitJournal(tmp_path, segment_bytes=32 << 20, classes=CLASSES)
    journal.by_write_group = True
    for _ in range(12):
        journal.append(0, [(0, b"a" * (1 << 20))])
    (work,) = journal.slices({}, {0: 12}, 64 << 20)
    with s3_server("shared") as server, wire_to(server.endpoint) as wire, SplitNode(journal, tmp_path) as node:
        wire.fault = fails = FirstUploadFails()
        node.store_config = ObjectStoreConfig(
            endpoint=wire.endpoint, options=CREDENTIALS, part_bytes=5 << 20, retry_seconds=30.0
        )
        store = SharedStore(url="s3://shared/prefix", folder="cluster")
        done = split_partition(SlicePartition(0, work, host_identity()), settings_of(node, store))
        (file,) = done.files
        ((first_group, (broken,)), (second_group, (whole,))) = node.announced
        assert (first_group, second_group, whole) == (0, 0, file.name)
        assert [path.rpartition("/")[2] for path in fails.objects] == [broken, whole]
        with BlockingStore.open(msgspec.structs.replace(store, config=node.store_config)) as there:
            assert there.begin_reading(object_of(0, path_of(whole)), 1).result()[0] == file.bytes
            with pytest.raises(ObjectAbsent):
                there.begin_reading(object_of(0, path_of(broken)), 1).result()
