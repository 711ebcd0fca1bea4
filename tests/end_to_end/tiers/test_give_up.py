"""A file of a shared store is lost for good: an operator gives it up, and clients go on behind what it had."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.store.plain_splitter import PlainSplitter
from confluent_kafka import Consumer, TopicPartition
from tests.cli.documented import documented_keys, keys_of
from tests.cli.store.test_store_adopt_nodes import Showing
from tests.clients.drivers import kafka_python, librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.shell import mainstem, mainstem_json
from tests.end_to_end.tiering import RUN_BYTES, unsplit_bytes
from tests.end_to_end.topics import Topics
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

from mainstem.cli.main import run

TOPIC = "lossy"
PARTS, MESSAGES = 3, 50
SMALL = (
    "pipeline.mode=off", "storage.write_cache_bytes=0", "journal.segment_age_seconds=1",
    "storage.checkpoint_seconds=1", "storage.prune_seconds=0.3", "nameserver.write_groups=1",
)  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "shared").mkdir()
    node = Serving(tmp_path / "node", *SMALL, f"store_dir={tmp_path / 'shared'}", "shared_store=true")
    try:
        node.start()
        yield node
    finally:
        node.close()


def filled(node: Serving, root: Path, *, shared: bool = True) -> list[Path]:
    """One run after the other, each with the next messages. `shared`: in a store that tells what counts."""
    Topics(node).create(TOPIC, {"retention.ms": "-1"})
    objects: list[Path] = []
    for part in range(PARTS):
        values = [b"%d" % (part * MESSAGES + number) for number in range(MESSAGES)]
        librdkafka.produce(node.kafka, TOPIC, [Message(value) for value in values])
        with PlainSplitter(node.http, RUN_BYTES) as splitter:
            splitter.split(merging=False)
        (new,) = set(root.rglob("*.run")) - set(objects)
        objects.append(new)
    eventually(lambda: not unsplit_bytes(node), what="a journal that is pruned of what is split")
    if shared:
        eventually(lambda: is_told(node, root), what="a store that tells what counts")
    return objects


def is_told(node: Serving, root: Path) -> bool:
    return any(root.glob("*/topics/head")) and not node.metric("mainstem_remote_chain_behind_changes")


def test_readers_go_on_behind_a_file_that_was_given_up(
    node: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "shared"
    objects = filled(node, shared)
    assert node.stop() == 0
    for lost in objects[1:]:  # the middle, and the end of the partition
        lost.unlink()
    node.start()
    verify = ["store", "verify", "--objects", "--store-dir", str(shared), "--json"]
    assert run(verify) == 1
    named = [finding["path"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert sorted(named) == sorted(str(lost.relative_to(shared)) for lost in objects[1:])

    address = ["--http", node.http]
    assert run(["store", "give-up", objects[0].name, "--yes", *address]) == 1
    assert "it is not lost" in " ".join(capsys.readouterr().err.split())
    assert run(["store", "give-up", *named, *address]) == 0
    looked = " ".join(capsys.readouterr().out.split())
    assert f"2 files with {2 * MESSAGES} records would be given up" in looked
    assert mainstem_json(node, "store", "status")["remote"]["given_up_count"] == 0, "nobody said --yes"
    assert run(["store", "give-up", *named, "--yes", "--by", "night shift", "--json", *address]) == 0
    done = json.loads(capsys.readouterr().out)
    documented = documented_keys()["store give-up"]
    assert keys_of(done, documented) == documented
    assert done["given_up"] is True

    kept = [b"%d" % number for number in range(MESSAGES)]
    more = [b"later", b"latest"]
    librdkafka.produce(node.kafka, TOPIC, [Message(value) for value in more])
    for client in (librdkafka, kafka_python):
        found = client.consume(node.kafka, TOPIC, MESSAGES + len(more))
        assert [record.value for record in found] == kept + more
    for _ in range(2):
        view = mainstem_json(node, "store", "status")["remote"]
        assert view["given_up_count"] == 2
        assert {one["by"] for one in view["given_up"]} == {"night shift"}
        assert node.metric("mainstem_remote_given_up_files") == 2
        assert "by night shift at " in " ".join(mainstem(node, "store", "status").split())
        usage = " ".join(mainstem(node, "store", "usage").split())
        assert f"2 files with {2 * MESSAGES} records that were lost" in usage
        assert node.stop() == 0
        node.start()
    eventually(lambda: is_told(node, shared), what="a chain that knows what was given up")
    assert run(verify) == 0
    checked = json.loads(capsys.readouterr().out)
    assert sorted(one["name"] for one in checked["given_up"]) == sorted(lost.name for lost in objects[1:])


def test_a_consumer_at_the_end_of_a_partition_that_was_given_up_reaches_the_end(node: Serving, tmp_path: Path) -> None:
    objects = filled(node, tmp_path / "shared")
    assert node.stop() == 0
    for lost in objects:
        lost.unlink()
    node.start()
    mainstem(node, "store", "give-up", *(lost.name for lost in objects), "--yes")
    found = mainstem(node, "consume", TOPIC, "--from", "beginning", "--json")
    assert found == "", "it ends at the end, and not never"


def read_from_0(bootstrap: str, count: int) -> list[bytes]:
    """The next messages for a consumer at offset 0, who would be sent to the end if that were out of range."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "latest"}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        return [message.value() or b"" for message in consumer.consume(count, PATIENCE_SECONDS)]
    finally:
        consumer.close()


def log_start(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "asking"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), PATIENCE_SECONDS)[0])
    finally:
        consumer.close()


def test_a_consumer_at_what_was_given_up_goes_on_behind_it_in_the_store_that_is_adopted(
    node: Serving, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    objects = filled(node, shared)
    assert node.stop() == 0
    objects[0].unlink()
    node.start()
    mainstem(node, "store", "give-up", objects[0].name, "--yes")
    left = [b"%d" % number for number in range(MESSAGES, PARTS * MESSAGES)]
    assert read_from_0(node.kafka, len(left)) == left
    assert log_start(node.kafka) == 0
    eventually(lambda: is_told(node, shared), what="a chain that knows what was given up")
    assert node.stop() == 0
    shown = Showing(tmp_path / "shown", str(shared)).start()
    try:
        assert read_from_0(shown.kafka, len(left)) == left
        assert log_start(shown.kafka) == 0
    finally:
        shown.close()


def test_readers_go_on_behind_a_lost_file_of_disk_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """First a file, then the whole disk."""
    node = Serving(tmp_path / "node", *SMALL)
    try:
        node.start()
        files = filled(node, node.store_dir, shared=False)
        assert node.stop() == 0
        files[1].unlink()
        node.start()
        assert run(["store", "give-up", f"runs/{files[0].name}", "--yes", "--http", node.http]) == 1
        assert "it is not lost" in " ".join(capsys.readouterr().err.split())
        assert run(["store", "give-up", "runs/unknown.run", "--yes", "--http", node.http]) == 1
        assert "no file of disk 2 that counts has this name" in " ".join(capsys.readouterr().err.split())
        told = mainstem(node, "store", "give-up", f"runs/{files[1].name}")
        assert f"1 file with {MESSAGES} records would be given up" in " ".join(told.split())
        assert mainstem_json(node, "store", "status")["given_up_count"] == 0, "nobody said --yes"
        mainstem(node, "store", "give-up", f"runs/{files[1].name}", "--yes", "--by", "night shift")
        kept = [b"%d" % number for number in range(PARTS * MESSAGES) if number // MESSAGES != 1]
        for client in (librdkafka, kafka_python):
            assert [record.value for record in client.consume(node.kafka, TOPIC, len(kept))] == kept
        assert "by night shift at " in " ".join(mainstem(node, "store", "status").split())
        assert f"1 file with {MESSAGES} records that were lost" in " ".join(mainstem(node, "store", "usage").split())

        assert node.stop() == 0
        shutil.rmtree(node.store_dir)
        node.store_dir.mkdir()
        directories = ["--write-dir", str(node.write_dir), "--store-dir", str(node.store_dir)]
        assert run(["store", "repair", *directories, "--yes"]) == 1
        assert "is this the store's disk, and mounted?" in " ".join(capsys.readouterr().out.split())
        assert not any(node.store_dir.iterdir())
        assert run(["store", "repair", "--disk-lost", *directories, "--yes"]) == 1, "its files are lost"
        assert "store.mark: made anew" in capsys.readouterr().out
        node.start()
        capsys.readouterr()
        assert run(["store", "verify", *directories, "--json"]) == 1
        lost = sorted({finding["path"] for finding in json.loads(capsys.readouterr().out)["findings"]})
        assert lost == sorted(f"runs/{file.name}" for file in (files[0], files[2]))
        mainstem(node, "store", "give-up", *lost, "--yes")
        assert mainstem(node, "consume", TOPIC, "--from", "beginning", "--json") == ""
        assert node.metric("mainstem_queue_store_given_up_files") == 3
        librdkafka.produce(node.kafka, TOPIC, [Message(b"later")])
        for _ in range(2):
            (found,) = client.consume(node.kafka, TOPIC, 1)
            assert (found.offset, found.value) == (PARTS * MESSAGES, b"later"), "no offset is given again"
            node.kill()
            node.start()
        assert node.stop() == 0
        assert run(["store", "verify", *directories]) == 0
    finally:
        node.close()
