"""An exported topic has the batches that were sent, byte by byte, in files as Kafka would have written them."""

from __future__ import annotations

import json
import random
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from tests.cli.documented import documented_keys, keys_of
from tests.cli.test_end_to_end import Shell
from tests.end_to_end.raw_producer import PRODUCE, PRODUCE_VERSION, TIMEOUT_MS, RawProducer
from tests.fakes.splitting.run_reader import batches_in
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving
from tests.storage.queue_store.merges import first_offset, last_offset, offset_entries, time_entries

from mainstem.cli.errors import RequestRefused
from mainstem.cli.store.exporting import queue_copy
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.records import Compression, NewRecord, build_batch

TOPIC = "exported"
PARTITIONS = 3
"""The last one stays empty."""
SEGMENT_BYTES = 20_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("node"), "pipeline.mode=off")
    serving.start()
    yield serving
    serving.close()


@pytest.fixture
def mainstem(node: Serving) -> Shell:
    return Shell(node)


class BatchProducer(RawProducer):
    def send_batch(self, partition: int, batch: bytes) -> None:
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=None, acks=-1, timeout_ms=TIMEOUT_MS,
            topic_data=(TopicProduceData(name=TOPIC, partition_data=(data,)),),
        )  # fmt: skip
        self._send(PRODUCE, PRODUCE_VERSION, request)
        assert self.answer() == 0


@pytest.fixture(scope="module")
def sent(node: Serving) -> dict[int, list[bytes]]:
    """The batches of each partition, as a producer made them: of all sizes and codecs, timestamps in no order."""
    Shell(node)("topic", "create", TOPIC, "--partitions", str(PARTITIONS))
    choice = random.Random(11)
    found: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    codecs = [Compression.NONE, Compression.GZIP, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY]
    with BatchProducer(node.kafka) as producer:
        for _ in range(120):
            records = [
                NewRecord(
                    timestamp=1_700_000_000_000 + choice.randrange(100_000),
                    key=choice.choice([None, b"k"]),
                    value=choice.choice([None, choice.randbytes(choice.choice([0, 50, 3000]))]),
                )
                for _ in range(choice.randint(1, 5))
            ]
            partition = choice.randrange(2)
            batch = bytes(build_batch(records, compression=choice.choice(codecs)).data)
            producer.send_batch(partition, batch)
            found[partition].append(batch)
    return found


def segments_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def test_batches_come_out_as_they_were_sent_in_segments_with_kafkas_indexes(
    node: Serving, sent: dict[int, list[bytes]], mainstem: Shell, tmp_path: Path
) -> None:
    told = json.loads(
        mainstem("store", "export", TOPIC, "--to", str(tmp_path), "--segment-bytes", str(SEGMENT_BYTES), "--json")
    )
    documented = documented_keys()["store export"]
    assert keys_of(told, documented) == documented
    for partition, batches in sent.items():
        directory = tmp_path / f"{TOPIC}-{partition}"
        found: list[bytes] = []
        offset, previous = 0, b""
        segments = segments_of(directory)
        for number, segment in enumerate(segments):
            content = segment.read_bytes()
            inside = batches_in(content)
            assert int(segment.stem) == offset
            found += inside
            offset = last_offset(inside[-1]) + 1 if inside else offset
            assert len(content) <= SEGMENT_BYTES or len(inside) == 1
            if number:
                assert len(previous) + len(inside[0]) > SEGMENT_BYTES, "a segment is left when the next does not fit"
            previous = content
            if inside:
                index = list(struct.iter_unpack(">ii", segment.with_suffix(".index").read_bytes()))
                assert index == offset_entries(inside)
                times = list(struct.iter_unpack(">qi", segment.with_suffix(".timeindex").read_bytes()))
                assert times == time_entries(inside)
        assert [batch[21:] for batch in found] == [batch[21:] for batch in batches]
        ends = [0, *(last_offset(batch) + 1 for batch in found)]
        assert [first_offset(batch) for batch in found] == ends[:-1]
        epochs = {struct.unpack_from(">i", batch, 12)[0] for batch in found}
        checkpoint = (directory / "leader-epoch-checkpoint").read_text().split("\n")
        assert checkpoint == (["0", "1", f"{min(epochs)} 0", ""] if found else ["0", "0", ""])
        assert (directory / "partition.metadata").read_text().startswith("version: 0\ntopic_id: ")
        assert {path.suffix for path in directory.iterdir()} == {".log", ".index", ".timeindex", "", ".metadata"}
        row = told["partitions"][partition]
        assert (row["partition"], row["first_offset"], row["end_offset"]) == (partition, 0, offset)
        assert (row["batches"], row["bytes"]) == (len(found), sum(map(len, found)))
        assert (row["segments"], Path(row["directory"])) == (len(segments), directory)
    assert len(segments_of(tmp_path / f"{TOPIC}-0")) > 3


def test_an_export_begins_at_the_log_start_and_with_the_topics_own_segment_bytes(
    node: Serving, mainstem: Shell, tmp_path: Path
) -> None:
    mainstem("topic", "create", "cut", "--partitions", "1", "--set", "segment.bytes=1048576")
    for number in range(5):
        mainstem("produce", "cut", stdin=b"%d\n" % number * 10)
    admin = AdminClient({"bootstrap.servers": node.kafka})
    for future in admin.delete_records([TopicPartition("cut", 0, 20)]).values():
        future.result(PATIENCE_SECONDS)
    mainstem("store", "export", "cut", "--to", str(tmp_path))
    (segment,) = segments_of(tmp_path / "cut-0")
    inside = batches_in(segment.read_bytes())
    assert first_offset(inside[0]) <= 20 <= last_offset(inside[0])
    assert last_offset(inside[-1]) == 49
    assert int(segment.stem) == first_offset(inside[0])


def test_nothing_is_written_over(sent: dict[int, list[bytes]], mainstem: Shell, tmp_path: Path) -> None:
    (tmp_path / f"{TOPIC}-1").mkdir()
    error = mainstem("store", "export", TOPIC, "--to", str(tmp_path), code=1)
    assert f"{TOPIC}-1 is there already; nothing is written over" in error
    assert [path.name for path in tmp_path.iterdir()] == [f"{TOPIC}-1"], "it is refused before anything is written"
    (tmp_path / f"{TOPIC}-0.partial").mkdir()
    error = mainstem("store", "export", TOPIC, "--to", str(tmp_path), "--partition", "0", code=1)
    assert "an export that did not end left it; remove it" in error
    mainstem("store", "export", TOPIC, "--to", str(tmp_path / "below" / "here"), "--partition", "0")
    assert [path.name for path in (tmp_path / "below" / "here").iterdir()] == [f"{TOPIC}-0"]


def test_what_is_not_there_is_told(mainstem: Shell, tmp_path: Path, sent: dict[int, list[bytes]]) -> None:
    error = mainstem("store", "export", "no-such", "--to", str(tmp_path), code=1)
    assert "topic no-such: " in error
    assert "UNKNOWN_TOPIC_OR_PARTITION" in error
    error = mainstem("store", "export", TOPIC, "--to", str(tmp_path), "-p", "7", code=1)
    assert f"topic {TOPIC} has no partition 7; it has {PARTITIONS}" in error
    error = mainstem("store", "export", TOPIC, "--to", str(tmp_path), "--bootstrap", "127.0.0.1:1", code=1)
    assert "no node at 127.0.0.1:1" in error
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_goes_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_copy, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    node = Serving(tmp_path, "pipeline.mode=off").start()
    try:
        shell = Shell(node)
        shell("topic", "create", "kept", "--partitions", "1")
        shell("produce", "kept", stdin=b"a\nb\n")
        source = queue_copy.TopicSource(node.kafka, "kept")
        assert source.bounds(0) == (0, 2)
        node.kill()
        starting = threading.Thread(target=node.start)
        starting.start()
        try:
            assert source.bounds(0) == (0, 2)
            assert sum(len(rows) for _content, rows in source.batches(0, 0, 2)) >= 1
        finally:
            starting.join()
            source.close()
        monkeypatch.setattr(queue_copy, "PATIENCE_SECONDS", 0.0)
        node.kill()
        with pytest.raises(RequestRefused, match="partition 0 of kept: "):
            source.bounds(0)
    finally:
        node.close()
