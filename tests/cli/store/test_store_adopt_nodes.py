"""`mainstem store adopt --serve` shows Kafka clients what a store has and changes nothing of it; `--into` makes the
write_dir of a node that goes on with it."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cli.documented import documented_keys, keys_of
from tests.end_to_end.cluster import Cluster
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving
from tests.storage.object_stores.servers import s3_server
from tests.storage.queue_store.runs import Batch
from tests.storage.remote.stored_cluster import CLUSTER, StoredCluster, told
from tests.storage.remote.tiered_node import as_batch

from mainstem.cli.main import run
from mainstem.cli.store import adopted_node
from mainstem.model import queue_id_of
from mainstem.protocol.records import NewRecord, build_batch
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.urls import open_object_store
from mainstem.storage.remote.chain.owner_record import OwnerRecord, decode_owner, encode_owner
from mainstem.storage.remote.chain.remote_chain import RemoteChain
from mainstem.storage.state.logs_behind import LOST_TERMS
from mainstem.storage.store_files.object_names import OWNER

GOES_ON_AT = 2 << 32
"""The offset at which all partitions of a cluster go on whose store has none beyond 2^32."""

COUNT = 300
"""Messages of topic-3's first partition; the second has none."""


def owner_of(store: Path) -> OwnerRecord:
    """The record in the store of the node that goes on with the cluster."""
    return decode_owner((store / CLUSTER / OWNER).read_bytes(), OWNER)


def value_of(offset: int) -> bytes:
    return b"order %d" % offset


def real_batches(first: int, end: int) -> list[Batch]:
    """Batches of ten records that clients can read."""
    found = []
    for base in range(first, end, 10):
        data = build_batch([NewRecord(1_000 + at, b"k", value_of(at)) for at in range(base, base + 10)]).data
        stamped = struct.pack(">q", base) + data[8:12] + struct.pack(">i", 1) + data[16:]
        found.append(as_batch(queue_id_of(3, 0), stamped))
    return found


def objects(directory: Path) -> dict[str, bytes]:
    """The objects of a store that holds a cluster."""
    found: dict[str, bytes] = {}

    async def story(there: StoredCluster) -> None:
        storage = there.node.storage
        chain = RemoteChain(storage.remote, there.folder, storage.groups)
        await there.upload("first.pack", real_batches(0, 200))
        await there.upload("last.pack", real_batches(200, COUNT))
        await chain.follow(0)
        await there.tell()
        found.update(
            {name: stored.content for name, stored in there.bucket.objects.items() if name.startswith(f"{CLUSTER}/")}
        )

    directory.mkdir()
    told(directory, story)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    for name, content in objects(tmp_path / "made").items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.fixture(autouse=True)
def _no_long_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopted_node, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(adopted_node, "LOOK_AT_OWNER_SECONDS", 0.01)


class Showing(Serving):
    """`mainstem store adopt URL --serve`."""

    def __init__(self, root: Path, url: str, *settings: str) -> None:
        super().__init__(root, *settings)
        self._url = url

    def arguments(self) -> list[str]:
        addresses = ["--listen", self.kafka, "--http", self.http, "--rpc", self.rpc]
        settings = [word for setting in self.settings for word in ("--set", setting)]
        return ["store", "adopt", self._url, "--serve", "--write-dir", str(self.write_dir), *addresses, *settings]


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def consumed(bootstrap: str, count: int, group: str) -> list[tuple[int, bytes]]:
    """The next messages of topic-3 for a consumer group, which commits them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )  # fmt: skip
    consumer.subscribe(["topic-3"])
    found: list[tuple[int, bytes]] = []
    try:
        for message in messages(consumer):
            found.append(message)
            if len(found) == count:
                break
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def messages(consumer: Consumer) -> Iterator[tuple[int, bytes]]:
    while (message := consumer.poll(PATIENCE_SECONDS)) is not None:
        if (error := message.error()) is not None:
            raise KafkaException(error)
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert value is not None
        yield offset, value


def published(bootstrap: str, value: bytes) -> int | KafkaError:
    """Publish to topic-3's first partition; the offset, or the error."""
    outcomes: list[int | KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(
        "topic-3", value, partition=0, callback=lambda error, message: outcomes.append(error or message.offset())
    )
    producer.flush(PATIENCE_SECONDS)
    return outcomes[0]


def test_clients_read_a_store_that_stays_as_it_is(store: Path, tmp_path: Path) -> None:
    before = content(store)
    node = Showing(tmp_path / "node", str(store)).start()
    try:
        expected = [(offset, value_of(offset)) for offset in range(COUNT)]
        assert consumed(node.kafka, 100, "g") == expected[:100]
        assert consumed(node.kafka, COUNT - 100, "g") == expected[100:]
        refused = published(node.kafka, b"no")
        assert isinstance(refused, KafkaError)
        assert refused.code() == KafkaError.POLICY_VIOLATION
        admin = AdminClient({"bootstrap.servers": node.kafka})
        changes = [
            *admin.create_topics([NewTopic("other", 1)]).values(),
            *admin.delete_topics(["topic-3"]).values(),
            *admin.delete_records([TopicPartition("topic-3", 0, 5)]).values(),
        ]
        for change in changes:
            with pytest.raises(KafkaException) as error:
                change.result(PATIENCE_SECONDS)
            assert error.value.args[0].code() == KafkaError.POLICY_VIOLATION
        assert "other" not in admin.list_topics(timeout=PATIENCE_SECONDS).topics
        asked = admin.list_topics("unknown", timeout=PATIENCE_SECONDS).topics["unknown"]
        assert asked.error is not None, "a topic that clients ask for is not created"
    finally:
        code = node.stop()
    assert code == 0, node.output
    assert content(store) == before


def test_a_cluster_goes_on_where_its_store_ends(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Serving(tmp_path / "node", f"remote_dir={store}", "pipeline.mode=off")
    command = ["store", "adopt", str(store), "--into", str(node.write_dir)]
    assert run([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = documented_keys()["store adopt --into"]
    assert keys_of(found, keys) == keys
    assert (found["cluster_id"], found["topics"], found["groups"][0]["changes"]) == (CLUSTER, 2, 4)
    assert found["goes_on_at"] == GOES_ON_AT
    assert run(command) == 1
    assert "is not empty" in capsys.readouterr().err

    node.start()
    try:
        assert node.get("/v1/cluster")["cluster_id"] == CLUSTER
        assert published(node.kafka, b"new") == GOES_ON_AT + 1
        read = consumed(node.kafka, COUNT + 1, "g")
        assert read == [*((at, value_of(at)) for at in range(COUNT)), (GOES_ON_AT + 1, b"new")]
        admin = AdminClient({"bootstrap.servers": node.kafka})
        admin.create_topics([NewTopic("other", 1)])["other"].result(PATIENCE_SECONDS)
        node.kill()
        node.start()
        assert published(node.kafka, b"newer") == GOES_ON_AT + 2
        until = time.monotonic() + PATIENCE_SECONDS
        while not owner_of(store).beats:
            assert time.monotonic() < until, "the node does not say in the store that it lives"
            time.sleep(0.1)
        assert owner_of(store).term > found["term"]
    finally:
        node.close()


def test_a_cluster_that_lives_is_not_adopted(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mainstem.node.storage_role import adoption

    refuse_if_alive = adoption.refuse_if_alive
    chain = store / CLUSTER / "groups/0/chain"
    newest = max(chain.iterdir())

    async def written_meanwhile(*args: object) -> None:
        held.rename(newest)
        await refuse_if_alive(*args)  # type: ignore[arg-type]

    held = newest.rename(store.parent / "held")
    (store / CLUSTER / "groups/0/head").unlink()
    monkeypatch.setattr(adoption, "refuse_if_alive", written_meanwhile)
    assert run(["store", "adopt", str(store), "--into", str(tmp_path / "write")]) == 1
    assert f"cluster {CLUSTER} is alive: its write group 0 has written changes" in capsys.readouterr().err
    assert not (tmp_path / "write").exists()


def test_a_cluster_that_lives_and_writes_nothing_is_not_adopted_either(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the operator says so: then it finds in the store that another goes on, and leaves that as it is."""
    from mainstem.node.storage_role import adoption

    refuse_if_alive, place = adoption.refuse_if_alive, store / CLUSTER / OWNER
    beats = iter(range(1, 100))

    def beat() -> None:
        place.write_bytes(encode_owner(OwnerRecord(5, next(beats), 4, 1_700_000_000_000)))

    async def beaten_meanwhile(*args: object) -> None:
        beat()
        await refuse_if_alive(*args)  # type: ignore[arg-type]

    beat()
    monkeypatch.setattr(adoption, "refuse_if_alive", beaten_meanwhile)
    command = ["store", "adopt", str(store), "--into", str(tmp_path / "write")]
    assert run(command) == 1
    said = capsys.readouterr().err
    assert f"cluster {CLUSTER} is alive: its node 4 has said so in the store" in said
    assert "at 2023-11-14 22:13:20Z" in said
    assert "--although-alive" in said
    assert not (tmp_path / "write").exists()
    assert owner_of(store).beats == 2
    assert run([*command, "--although-alive"]) == 0
    assert owner_of(store).beats == 0
    monkeypatch.setattr(adoption, "refuse_if_alive", refuse_if_alive)
    assert run(["store", "adopt", str(store), "--into", str(tmp_path / "of another node")]) == 0


def test_terms_begin_behind_what_the_last_owner_said(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = store / CLUSTER / OWNER
    terms = []
    for number, owner in enumerate((None, OwnerRecord(3_000_000, 9, 1, 0), OwnerRecord(5_000_000, 0, 1, 0))):
        if owner is not None:
            place.write_bytes(encode_owner(owner))
        assert run(["store", "adopt", str(store), "--into", str(tmp_path / str(number)), "--json"]) == 0
        terms.append(json.loads(capsys.readouterr().out)["term"])
        assert owner_of(store) == OwnerRecord(terms[-1], 0, owner_of(store).node_id, owner_of(store).written_ms)
    assert terms[1:] == [3_000_000 + LOST_TERMS, 5_000_000], "nodes that adopt together begin in one term"


def test_what_goes_with_what(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "adopt", str(store), "--list", "--serve"]) == 2
    assert run(["store", "adopt", str(store), "--list", "--listen", "127.0.0.1:0"]) == 2
    assert run(["store", "adopt", str(store), "--list", "--although-alive"]) == 2
    capsys.readouterr()
    peers = [word for node in (1, 2, 3, 4) for word in ("--set", f"nameserver.peers.{node}=127.0.0.1:{9000 + node}")]
    into = ["--into", str(tmp_path / "write"), "--set", "nameserver.replication_factor=3"]
    assert run(["store", "adopt", str(store), *into, *peers]) == 1
    assert "4 nodes with 3 replicas" in capsys.readouterr().err
    missing = store / CLUSTER / "groups/0/chain" / f"{2:020}"
    missing.write_bytes(missing.read_bytes()[:-1])
    assert run(["store", "adopt", str(store), "--into", str(tmp_path / "write")]) == 1
    assert f"groups/0/chain/{2:020}: fails its checksum" in capsys.readouterr().err
    assert not (tmp_path / "write").exists()


def test_a_bucket_is_adopted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("obstore")
    there = objects(tmp_path / "made")
    with s3_server() as server:
        config = ObjectStoreConfig(endpoint=server.endpoint, options=server.options)

        async def write(names: Sequence[str]) -> None:
            store = open_object_store(f"s3://{server.bucket}/a", config)
            for name in names:
                await store.write(name, there[name])

        asyncio.run(write(list(there)))
        options = [f"object_store.options.{name}={value}" for name, value in server.options.items()]
        settings = [f"object_store.endpoint={server.endpoint}", *options]
        node = Showing(tmp_path / "node", f"s3://{server.bucket}/a", *settings).start()
        try:
            assert consumed(node.kafka, COUNT, "g")[-1] == (COUNT - 1, value_of(COUNT - 1))
        finally:
            assert node.stop() == 0


def test_the_nodes_of_a_replicated_cluster_adopt_it_one_by_one_and_go_on_together(store: Path, tmp_path: Path) -> None:
    """Each has the same logs, so that any of them may lead; what the first leader has raised stays as it is."""
    cluster = Cluster(tmp_path / "cluster", f"remote_dir={store}", "pipeline.mode=off")
    for node in cluster.nodes.values():
        settings = [word for setting in node.settings for word in ("--set", setting)]
        assert run(["store", "adopt", str(store), "--into", str(node.write_dir), *settings]) == 0
    try:
        cluster.start()
        assert published(cluster.bootstrap, b"new") == GOES_ON_AT + 1
        leader = cluster.get("/v1/cluster", 1)["write_groups"][0]["leader"]
        cluster.kill(leader)
        assert published(cluster.bootstrap, b"newer") == GOES_ON_AT + 2
        read = consumed(cluster.bootstrap, COUNT + 2, "g")
        assert read[:COUNT] == [(at, value_of(at)) for at in range(COUNT)]
        assert read[COUNT:] == [(GOES_ON_AT + 1, b"new"), (GOES_ON_AT + 2, b"newer")]
        cluster.start(leader)
        cluster.wait_until_well()
    finally:
        cluster.close()
