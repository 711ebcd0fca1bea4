"""The load generator: against a real node everything comes back; against a scripted one it counts and complains.

Nothing here measures: the figures of a shared machine say nothing. Latency is asserted only as far as a broker that
stalls on purpose makes it certain."""

from __future__ import annotations

import subprocess
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.librdkafka import consume
from bench.load import Fetch, LoadError, Produce, build, has_openssl, run, start
from bench.metrics import pooled_ms
from bench.systems.guard import Guard
from bench.systems.system import free_ports
from bench.transactional_clients import Transactions, play
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.list_offsets.v1.request import ListOffsetsRequest
from kio.schema.metadata.v4.request import MetadataRequest
from kio.schema.produce.v7.request import ProduceRequest
from tests.bench.scripted_broker import (
    Request,
    ScriptedBroker,
    batch,
    batches_in,
    described,
    fetched,
    framed,
    offsets_told,
    produced,
    scripted,
)
from tests.clients.drivers import kafka_python
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("load"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("node"), "pipeline.mode=off").start()
    yield serving
    serving.close()


def create_topics(node: Serving, prefix: str, count: int, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    wanted = [NewTopic(f"{prefix}-{number}", partitions, 1) for number in range(count)]
    for created in admin.create_topics(wanted, request_timeout=PATIENCE_SECONDS).values():
        created.result(PATIENCE_SECONDS)


def test_it_is_compiled_again_only_when_a_source_is_newer(binary: Path) -> None:
    compiled = binary.stat().st_mtime_ns
    assert build(binary.parent) == binary
    assert binary.stat().st_mtime_ns == compiled


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LoadError, match="apt-get install gcc"):
        build(tmp_path)


def test_checksums_and_quantiles(binary: Path) -> None:
    subprocess.run([binary, "self-check"], check=True, timeout=PATIENCE_SECONDS)


# A real node


def test_what_is_produced_comes_back(binary: Path, node: Serving) -> None:
    create_topics(node, "back", count=3, partitions=8)
    bytes_sent = records_sent = batches_sent = 0
    loads: list[dict[str, Any]] = [
        {"queues_per_request": 24},
        {"queues_per_request": 7, "connections": 3, "shuffle": True},
        {"queues_per_request": 24, "pool_bytes": 1 << 16, "batch_records": 100},
        {"queues_per_request": 5, "acks": 0},
        {"queues_per_request": 1, "acks": 1, "connections": 8, "batch_records": 1},
    ]
    for load in loads:
        sent = run(
            binary,
            Produce(address=node.kafka, topics="back:3", partitions=8, bytes=400_000, record_bytes=300, **load),
        )
        assert sent["errors"] == {}
        assert sent["bytes"] >= 400_000
        assert sent["batches"] == sent["requests"] * load["queues_per_request"]
        assert sent["records"] == sent["batches"] * load.get("batch_records", 10)
        assert sent["latency_us"]["count"] == sent["requests"]
        bytes_sent += sent["bytes"]
        batches_sent += sent["batches"]
        records_sent += sent["records"]

    for per_request, connections in [(24, 1), (5, 3)]:
        back = run(
            binary,
            Fetch(
                address=node.kafka,
                topics="back:3",
                partitions=8,
                queues_per_request=per_request,
                connections=connections,
                until_end=True,
                check_crc=True,
                max_bytes=200_000,
            ),
        )
        assert back["errors"] == {}
        assert (back["gaps"], back["checksum_errors"], back["abandoned"]) == (0, 0, 0)
        assert (back["bytes"], back["batches"], back["records"]) == (bytes_sent, batches_sent, records_sent)
    nothing_new = run(binary, Fetch(address=node.kafka, topics="back:3", partitions=8, from_="latest", until_end=True))
    assert (nothing_new["requests"], nothing_new["records"]) == (0, 0)


def test_what_is_produced_over_tls_comes_back(binary: Path, tmp_path: Path) -> None:
    """More of it than OpenSSL reads ahead, in answers that end anywhere in a record; questions about topics are asked
    in the clear. Without headers of OpenSSL, the program says what to install."""
    guard = Guard(tmp_path / "guard", users=False)
    encrypted = f"127.0.0.1:{free_ports(1)[0]}"
    settings = [f"{key}={value}" for key, value in guard.of_mainstem(encrypted).items()]
    with closing(Serving(tmp_path / "node", "pipeline.mode=off", *settings).start()) as node:
        create_topics(node, "tls", count=1, partitions=8)
        where: dict[str, Any] = {"address": node.kafka, "tls_address": encrypted, "topics": "tls:1", "partitions": 8}
        load = Produce(**where, bytes=3_000_000, record_bytes=1_000, queues_per_request=8, connections=2)
        if not has_openssl("cc"):
            with pytest.raises(LoadError, match="apt-get install libssl-dev"):
                run(binary, load)
            return
        sent = run(binary, load)
        back = run(binary, Fetch(**where, queues_per_request=4, connections=2, until_end=True, check_crc=True))
        assert (sent["errors"], back["errors"]) == ({}, {})
        assert (back["gaps"], back["checksum_errors"]) == (0, 0)
        assert (back["bytes"], back["records"]) == (sent["bytes"], sent["records"])
        with pytest.raises(LoadError, match="no TLS with"):
            run(binary, replace(load, tls_address=node.kafka))


def test_a_client_reads_what_it_wrote(binary: Path, node: Serving) -> None:
    create_topics(node, "client", count=1, partitions=1)
    load = Produce(address=node.kafka, topics="client:1", partitions=1, bytes=50_000, record_bytes=1_000, in_flight=1)
    sent = run(binary, load)
    received = kafka_python.consume(node.kafka, "client-0", sent["records"])
    assert [message.offset for message in received] == list(range(sent["records"]))
    values = [message.value or b"" for message in received]
    assert {len(value) for value in values} == {1_000}
    assert len(zlib.compress(values[0])) > 1_000


def test_transactions_are_committed_and_aborted_and_end_for_readers_of_committed_ones(
    binary: Path, node: Serving
) -> None:
    """An open transaction at the end of one queue: readers of committed ones stop before it, and are told of the
    aborted ones, whose batches come."""
    create_topics(node, "transactions", count=1, partitions=2)
    load = Transactions(
        address=node.kafka, topic="transactions-0", queues=2, batches=6, batch_records=2, record_bytes=50, abort_every=2
    )
    told = play(load, producers=2, seconds=PATIENCE_SECONDS, count=4)
    assert told["transactions"] == 8
    assert 0 < told["p50_ms"] <= told["p99_ms"]
    # each producer has committed one before, and two of its four; librdkafka reads committed ones by default
    assert consume(node.kafka, "transactions-0", 2)["records"] == (2 + 4) * 12
    fetch = Fetch(address=node.kafka, topics="transactions:1", partitions=2, queues_per_request=2, until_end=True)
    everything, read = (run(binary, replace(fetch, committed=committed)) for committed in (False, True))
    assert read["errors"] == {}
    assert read["records"] == everything["records"] == (2 + 8) * (12 + 2)  # a marker in each queue
    with open_transaction(node) as producer:
        producer.produce("transactions-0", b"open", partition=0)
        producer.flush(PATIENCE_SECONDS)
        after = run(binary, replace(fetch, until_end=False, committed=True, seconds=0.2))
        assert after["records"] == read["records"]
        assert run(binary, fetch)["records"] == read["records"] + 1


@contextmanager
def open_transaction(node: Serving) -> Iterator[Producer]:
    """A producer in a transaction, which is aborted at the end."""
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "open"})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    yield producer
    producer.abort_transaction(PATIENCE_SECONDS)


def test_a_schedule_is_kept_to_the_last_request(binary: Path, node: Serving) -> None:
    create_topics(node, "paced", count=1, partitions=4)
    load = Produce(address=node.kafka, topics="paced:1", partitions=4, seconds=0.5, rate=200, interval_seconds=0.1)
    sent = run(binary, load)
    assert sent["requests"] == 101  # due at 0, 5, … 500 ms
    assert (sent["unsent"], sent["errors"]) == (0, {})
    assert sent["send_delay_us"]["count"] == 101
    assert len(sent["intervals"]) >= 5


def test_topics_that_are_not_as_said(binary: Path, node: Serving) -> None:
    create_topics(node, "said", count=1, partitions=2)
    with pytest.raises(LoadError, match="topic said-0 has 2 partitions, not 3"):
        run(binary, Produce(address=node.kafka, topics="said:1", partitions=3, seconds=1))


# A scripted broker: producing


def scripted_produce(broker: ScriptedBroker, **load: Any) -> Produce:
    return Produce(**{"address": broker.address, "no_check": True, "batch_records": 3, **load})


@pytest.mark.parametrize(
    "form",
    [{}, {"pool_bytes": 1 << 16}, {"shuffle": True, "pool_bytes": 1 << 16}],
    ids=["whole", "shared", "shuffled"],
)
def test_requests_are_valid_and_visit_every_queue_in_turn(binary: Path, form: dict[str, Any]) -> None:
    """A broker that reads slowly: megabyte requests of a thousand pieces leave in many short writes."""
    topics, partitions, per_request = 12, 100, 600
    record_bytes, requests = 800, 6  # more than a sender's socket takes at once
    with scripted(produced, slow=True) as broker:
        load = scripted_produce(
            broker,
            topics=f"visit:{topics}",
            partitions=partitions,
            queues_per_request=per_request,
            record_bytes=record_bytes,
            bytes=requests * per_request * 3 * record_bytes,
            **form,
        )
        sent = run(binary, load)
    assert sent["requests"] == len(broker.requests) == requests
    assert [request.correlation for request in broker.requests] == list(range(requests))
    visits: Counter[tuple[str, int]] = Counter()
    received_bytes = 0
    for request in broker.requests:
        assert (request.body.acks, request.body.transactional_id) == (-1, None)
        names = [topic.name for topic in request.body.topic_data]
        assert len(names) == len(set(names))
        for topic in request.body.topic_data:
            for partition in topic.partition_data:
                (found,) = batches_in(partition.records)
                assert found.validate_crc()
                assert [len(record.value) for record in found] == [record_bytes] * 3
                received_bytes += len(partition.records)
                visits[topic.name, partition.index] += 1
    assert received_bytes == sent["bytes"]
    assert len(visits) == topics * partitions
    assert set(visits.values()) == {requests // 2}


NOT_LEADER = 6


@contextmanager
def cluster_of(
    node_ids: Sequence[int], partitions: int, leader_of: Callable[[int], int]
) -> Iterator[dict[int, ScriptedBroker]]:
    """Brokers that name each other, and each leads what `leader_of` says."""
    brokers: dict[int, ScriptedBroker] = {}

    def answer_of(node_id: int) -> Callable[[Request], bytes]:
        def answer(request: Request) -> bytes:
            if isinstance(request.body, MetadataRequest):
                addresses = {number: broker.address for number, broker in brokers.items()}
                return described(request, addresses, partitions, leader_of)
            if isinstance(request.body, ListOffsetsRequest):
                return offsets_told(request, lambda index: 0 if leader_of(index) == node_id else NOT_LEADER)
            return produced(request)

        return answer

    with ExitStack() as stack:
        for node_id in node_ids:
            brokers[node_id] = stack.enter_context(scripted(answer_of(node_id)))
        yield brokers


def test_each_queue_s_requests_go_to_its_leader(binary: Path) -> None:
    def leader_of(partition: int) -> int:
        return (3, 7)[partition % 3 == 0]  # 7 leads four of twelve, 5 none

    with cluster_of((3, 5, 7), 12, leader_of) as brokers:
        load = Produce(
            address=brokers[5].address, topics="led:2", partitions=12, leaders=True, queues_per_request=2,
            connections=4, in_flight=1, bytes=2_000_000, shuffle=True,
        )  # fmt: skip
        sent = run(binary, load)
    assert sent["errors"] == {}
    visits: dict[int, Counter[tuple[str, int]]] = {}
    for node_id, broker in brokers.items():
        sends = [request for request in broker.requests if isinstance(request.body, ProduceRequest)]
        assert len({request.connection for request in sends}) == {3: 2, 5: 0, 7: 2}[node_id]
        visits[node_id] = Counter(
            (topic.name, partition.index)
            for request in sends
            for topic in request.body.topic_data
            for partition in topic.partition_data
        )
    assert sum(visits[3].values()) + sum(visits[7].values()) == sent["batches"]
    for node_id in (3, 7):
        assert {partition for _, partition in visits[node_id]} == {at for at in range(12) if leader_of(at) == node_id}
        assert max(visits[node_id].values()) - min(visits[node_id].values()) <= 1


def test_a_leader_of_too_few_queues_and_too_few_connections_are_named(binary: Path) -> None:
    with cluster_of((1, 2), 4, lambda partition: 1 + (partition == 0)) as brokers:
        wanted = Produce(address=brokers[1].address, topics="led:1", partitions=4, leaders=True, seconds=1.0)
        with pytest.raises(LoadError, match="leads 1 queues, too few for requests of 2"):
            run(binary, replace(wanted, queues_per_request=2, connections=2))
        with pytest.raises(LoadError, match="2 nodes lead the queues, and each needs one"):
            run(binary, wanted)


def test_a_run_counts_once_it_has_asked_about_all_queues(binary: Path) -> None:
    with cluster_of((1,), 12, lambda partition: 1) as brokers:
        running = start(
            binary, Produce(address=brokers[1].address, topics="told:2", partitions=12, leaders=True, bytes=1_000)
        )
        running.await_counting()
        asked = [request.body for request in brokers[1].requests if isinstance(request.body, ListOffsetsRequest)]
        sent = running.result()
    assert sum(len(topic.partitions) for body in asked for topic in body.topics) == 24
    assert sent["errors"] == {}
    assert sent["bytes"] >= 1_000


def test_a_run_that_never_counts_says_why(binary: Path) -> None:
    with cluster_of((1,), 4, lambda partition: 1) as brokers:
        running = start(
            binary, Produce(address=brokers[1].address, topics="told:1", partitions=5, leaders=True, bytes=1)
        )
        running.await_counting()
        with pytest.raises(LoadError, match="topic told-0 has 4 partitions, not 5"):
            running.result()


def test_errors_are_counted_by_partition(binary: Path) -> None:
    codes = [0, 6, 0, 87]
    with scripted(lambda request: produced(request, lambda number: codes[number % 4])) as broker:
        load = scripted_produce(broker, topics="wrong:2", partitions=4, queues_per_request=8, seconds=0.2)
        sent = run(binary, load)
    assert sent["errors"] == {"6": sent["requests"] * 2, "87": sent["requests"] * 2}
    assert sent["batches"] == sent["requests"] * 4
    assert sent["records"] == sent["batches"] * 3


def test_a_stall_is_charged_to_every_request_of_it(binary: Path) -> None:
    """The first answer comes after half a second. A closed loop would call all but the first request fast."""
    stalled = threading.Event()

    def answer(request: Request) -> bytes:
        if not stalled.is_set():
            stalled.wait(0.5)
            stalled.set()
        return produced(request)

    with scripted(answer) as broker:
        load = scripted_produce(broker, topics="stall:1", partitions=1, seconds=0.6, rate=100, in_flight=1)
        sent = run(binary, load)
    assert sent["requests"] == sent["latency_us"]["count"] == 61
    # of the 61 requests, due every 10 ms, those of the first half second waited for what was left of it
    assert sent["latency_us"]["max"] >= 490_000
    buckets = sent["latency_buckets"]
    assert sum(count for _, count in buckets) == 61
    assert [place for place, _ in buckets] == sorted({place for place, _ in buckets})
    assert pooled_ms([sent], 1.0) * 1000 == pytest.approx(sent["latency_us"]["max"], rel=0.01)
    assert pooled_ms([sent, sent], 0.5) * 1000 == pytest.approx(sent["latency_us"]["p50"], rel=0.01)
    assert sent["latency_us"]["p50"] >= 190_000
    assert sent["send_delay_us"]["p50"] >= 180_000
    assert sent["served_us"]["count"] == 0


def test_a_broker_is_timed_by_the_kernels_notes(binary: Path) -> None:
    """The second answer comes half a second after its request. The third request waits for it in the load, which counts
    for its latency, not for the broker's time."""

    def answer(request: Request) -> bytes:
        if request.correlation == 1:
            threading.Event().wait(0.5)
        return produced(request)

    with scripted(answer) as broker:
        load = scripted_produce(broker, topics="noted:1", partitions=1, seconds=0.2, rate=10, in_flight=1)
        sent = run(binary, replace(load, kernel_times=True))
    assert sent["requests"] == sent["served_us"]["count"] == 3
    assert sent["served_us"]["max"] >= 500_000
    served, latency = (pooled_ms([sent], 2 / 3, buckets) for buckets in ("served_buckets", "latency_buckets"))
    assert served < latency  # the second of three: only one was served late, and two were answered late


def test_kernel_times_are_not_for_tls(binary: Path) -> None:
    load = Produce(address="localhost:1", tls_address="localhost:2", topics="noted:1", partitions=1, seconds=1)
    with pytest.raises(LoadError, match="--kernel-times"):
        run(binary, replace(load, kernel_times=True))


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda request: None, "the broker closed it after 0 answers with 5 requests unanswered"),
        (lambda request: b"\0\0\0\x04" + b"\0\0\x07\x07", "the correlation id of another request"),
        (lambda request: framed(request.correlation, produced(request)[8:] + b"x"), "response is malformed"),
        (lambda request: framed(request.correlation, produced(request)[8:-30]), "response is malformed"),
        (lambda request: produced(request, drop=1), "answers more or fewer partitions"),
        (lambda request: b"\x7f\xff\xff\xff" + b"\0\0\0\0", "an impossible size"),
        (lambda request: b"HTTP/1.1 400 Bad Request\r\n\r\n", "an impossible size"),
    ],
)
def test_what_a_broker_does_wrong_is_named(binary: Path, answer: Any, complaint: str) -> None:
    with scripted(answer) as broker:
        load = scripted_produce(broker, topics="wrong:1", partitions=4, queues_per_request=4, seconds=0.2)
        with pytest.raises(LoadError, match=complaint):
            run(binary, load)


# A scripted broker: consuming


def scripted_fetch(broker: ScriptedBroker, **load: Any) -> Fetch:
    return Fetch(**{"address": broker.address, "no_check": True, "from_": 0, "seconds": PATIENCE_SECONDS, **load})


def asked_for(request: Request) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, partition.partition): partition.fetch_offset
        for topic in request.body.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("piece_bytes", [1, 7, 100, 1 << 20])
def test_responses_are_read_however_they_are_cut(binary: Path, piece_bytes: int) -> None:
    """Two queues; the broker ends each answer within a batch, as brokers do: one queue's within its header."""
    history = {
        ("cut-0", 0): [batch(n * 4, 4) for n in range(6)],
        ("cut-1", 1): [batch(n, 1) for n in range(24)],
    }
    batches_asked_for = 24

    def answer(request: Request) -> list[bytes]:
        found = {}
        for queue, offset in asked_for(request).items():
            stored = history.get(queue, [])
            rest = b"".join(stored[offset * len(stored) // batches_asked_for :])
            found[queue] = (0, rest[:298])
        frame = fetched(request, found)
        return [frame[at : at + piece_bytes] for at in range(0, len(frame), piece_bytes)]

    total = sum(len(stored) for batches in history.values() for stored in batches)
    with scripted(answer) as broker:
        load = scripted_fetch(
            broker,
            topics="cut:2",
            partitions=2,
            queues_per_request=4,
            bytes=total,
            in_flight=2,
            check_crc=True,
        )
        back = run(binary, load)
    assert (back["bytes"], back["batches"], back["records"]) == (total, 30, 48)
    assert (back["gaps"], back["checksum_errors"], back["errors"]) == (0, 0, {})
    offsets = [asked_for(request)["cut-1", 1] for request in broker.requests]
    assert offsets == sorted(offsets)
    assert set(asked_for(broker.requests[0])) == {("cut-0", 0), ("cut-0", 1), ("cut-1", 0), ("cut-1", 1)}


def test_gaps_bad_checksums_and_lost_offsets_are_counted(binary: Path) -> None:
    damaged = bytearray(batch(7, 1))
    damaged[-3] ^= 1
    stored = batch(0, 4) + batch(5, 2) + bytes(damaged)

    def answer(request: Request) -> bytes:
        return fetched(request, {("gap-0", 1): (1, b""), ("gap-0", 2): (6, b""), ("gap-0", 0): (0, stored)})

    with scripted(answer) as broker:
        load = scripted_fetch(
            broker, topics="gap:1", partitions=3, queues_per_request=3, bytes=len(stored), check_crc=True
        )
        back = run(binary, load)
    assert (back["gaps"], back["checksum_errors"], back["abandoned"]) == (1, 1, 1)
    assert back["errors"] == {"1": 1, "6": 1}
    assert (back["batches"], back["records"]) == (3, 7)


def test_large_payload_is_dropped_unseen_but_counted(binary: Path) -> None:
    size = 3_000_000
    stored = [batch(number * 2, 2, bytes(size // 2)) for number in range(3)]

    def answer(request: Request) -> bytes:
        offset = asked_for(request)["large-0", 0]
        return fetched(request, {("large-0", 0): (0, b"".join(stored[offset // 2 :]))})

    total = sum(map(len, stored))
    with scripted(answer) as broker:
        back = run(binary, scripted_fetch(broker, topics="large:1", partitions=1, bytes=total))
    assert (back["bytes"], back["batches"], back["records"], back["gaps"]) == (total, 3, 6, 0)


@pytest.mark.parametrize("piece_bytes", [5_000, 100_000])
def test_a_large_response_is_read_to_its_end_however_little_comes_at_a_time(binary: Path, piece_bytes: int) -> None:
    """The kernel tells the load of a good part of it, and of the rest as it comes."""
    stored = [batch(number * 2, 2, bytes(5_000)) for number in range(60)]
    half = len(stored) // 2

    def answer(request: Request) -> list[bytes]:
        offset = asked_for(request)["pieces-0", 0]
        frame = fetched(request, {("pieces-0", 0): (0, b"".join(stored[offset // 2 :][:half]))})
        return [frame[at : at + piece_bytes] for at in range(0, len(frame), piece_bytes)]

    total = sum(map(len, stored))
    with scripted(answer) as broker:
        back = run(binary, scripted_fetch(broker, topics="pieces:1", partitions=1, bytes=total, check_crc=True))
    assert (back["bytes"], back["batches"], back["records"]) == (total, 60, 120)
    assert (back["gaps"], back["checksum_errors"], back["errors"]) == (0, 0, {})
