"""kcat, the command line people try first."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka.admin import AdminClient
from tests.clients.conftest import MakeTopic
from tests.clients.drivers import kcat, librdkafka
from tests.clients.drivers.message import AWKWARD, EVERY_BYTE
from tests.harness.patience import PATIENCE_SECONDS


def test_it_lists_nodes_and_topics(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    printed = kcat.output(bootstrap, "-L").decode()
    assert f"broker 1 at {bootstrap}" in printed
    assert f'topic "{topic}" with 3 partitions' in printed
    listed = json.loads(kcat.output(bootstrap, "-L", "-J", "-t", topic))
    (described,) = listed["topics"]
    assert [partition["leader"] for partition in described["partitions"]] == [1, 1, 1]


def test_listing_a_topic_does_not_make_it(bootstrap: str, admin: AdminClient, name: str) -> None:
    printed = kcat.output(bootstrap, "-L", "-t", name, "-X", "allow.auto.create.topics=false").decode()
    assert "Unknown topic or partition" in printed
    assert name not in admin.list_topics(timeout=PATIENCE_SECONDS).topics


def test_tombstones_headers_and_whole_files(bootstrap: str, topic: str, tmp_path: Path) -> None:
    kcat.output(bootstrap, "-P", "-t", topic, "-Z", "-K:", "-H", "name=value", "-H", "empty=", stdin=b"key:\n:value\n")
    file = tmp_path / "message"
    file.write_bytes(EVERY_BYTE)
    kcat.output(bootstrap, "-P", "-t", topic, "-k", "file", str(file))
    found = librdkafka.consume(bootstrap, topic, 3)
    headers = (("name", b"value"), ("empty", b""))
    assert [message.content for message in found] == [
        (None, b"key", headers),
        (b"value", None, headers),
        (EVERY_BYTE, b"file", ()),
    ]


def test_it_reads_from_every_kind_of_start_and_stops_at_the_end(bootstrap: str, topic: str) -> None:
    librdkafka.produce(bootstrap, topic, AWKWARD)
    first = AWKWARD[0].timestamp_ms
    assert first is not None
    every = [b"%d" % number for number in range(len(AWKWARD))]

    def offsets(*start: str) -> list[bytes]:
        return kcat.output(bootstrap, "-C", "-t", topic, "-e", "-q", "-f", r"%o\n", *start).split()

    assert offsets("-o", "beginning") == every
    assert offsets("-o", "end") == []
    assert offsets("-o", "-3") == every[-3:]
    assert offsets("-o", "5") == every[5:]
    assert offsets("-o", f"s@{first + 3_500}") == every[4:]
    assert offsets("-o", f"s@{first + 2_000}", "-o", f"e@{first + 5_000}") == every[2:5]


def test_what_cannot_be_is_said(bootstrap: str, name: str) -> None:
    done = kcat.run(bootstrap, "-C", "-t", name, "-e", "-X", "allow.auto.create.topics=false")
    assert done.returncode != 0
    assert b"Unknown topic or partition" in done.stderr
    done = kcat.run(bootstrap, "-P", "-t", "no spaces please", stdin=b"x\n")
    assert done.returncode != 0
    assert b"Invalid topic" in done.stderr
