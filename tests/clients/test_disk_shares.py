"""A tenant that fills disk 1 on a real node waits for the splitter, before anybody else has to."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.end_to_end.cluster import Cluster
from tests.harness.free_port import HOST, free_port
from tests.harness.serving import Serving, eventually
from tests.hostile.honest import PRODUCE, create_topic, produce_request
from tests.hostile.wire import Wire

from mainstem.cli.main import run
from mainstem.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest

MIB = 1 << 20
SEGMENT_BYTES = 4 * MIB
JOURNAL_BYTES_MAX = 160 * MIB
PACED_FROM = 0.5 * JOURNAL_BYTES_MAX
"""Tenants are held from 0.75 on, by what they brought in the last second, and segments that are not full count as a
whole: the flood is paced some seconds before, or it would begin with a rate that takes all that is left."""
PACE_SECONDS = 0.3
"""Between two requests: some seconds to where they are held, and ten from there to where all are refused."""
RECORD_BYTES = 900_000


class Doors(NamedTuple):
    broker: Serving
    shared: str
    """The address of the broker's listener by which the user `flood` comes."""
    store: Serving
    """The node whose disk 1 fills."""


@pytest.fixture(params=["straight", "by a broker without storage"])
def doors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Doors]:
    """Of a node on which nothing is split."""
    users = tmp_path / "users"
    users.write_text("flood:water\n")
    users.chmod(0o600)
    shared = f"{HOST}:{free_port()}"
    listener = {"listen": shared, "protocol": "SASL_PLAINTEXT"}
    filling = (
        "pipeline.mode=off", f"journal.segment_bytes={SEGMENT_BYTES}",
        f"storage.journal_bytes_max={JOURNAL_BYTES_MAX}", "storage.disk_check_seconds=0.1",
    )  # fmt: skip
    asking = (
        "sasl.mechanisms=PLAIN", f"sasl.plain_users_file={users}", f"server.listeners.SHARED={json.dumps(listener)}",
    )  # fmt: skip
    if request.param == "straight":
        serving = Serving(tmp_path, *filling, *asking)
        try:
            serving.start()
            yield Doors(serving, shared, serving)
        finally:
            serving.close()
        return
    cluster = Cluster(tmp_path, *filling, count=2, roles={1: "storage,nameserver", 2: "broker"})
    cluster.nodes[2].settings += asking
    try:
        cluster.start()
        yield Doors(cluster.nodes[2], shared, cluster.nodes[1])
    finally:
        cluster.close()


def produced(wire: Wire, topic: str) -> tuple[int, int]:
    """The error code of a request of nearly a megabyte, and for how many ms the client is throttled."""
    answer: Any = wire.call(produce_request(topic, [bytes(RECORD_BYTES)]), PRODUCE)
    return answer.responses[0].partition_responses[0].error_code, answer.throttle_time_ms


def test_who_fills_disk_1_waits_and_others_are_neither_slowed_nor_refused(
    doors: Doors, capsys: pytest.CaptureFixture[str]
) -> None:
    broker, store = doors.broker, doors.store
    for topic in ("flood.all", "quiet"):
        create_topic(broker.kafka, topic)
    assert run(["tenant", "create", "flood", "--user", "flood", "--http", broker.http]) == 0
    with Wire(broker.kafka) as quiet, Wire(doors.shared) as flood:
        flood.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert flood.call(SaslAuthenticateRequest(auth_bytes=b"\0flood\0water"), 2).error_code == 0
        assert produced(quiet, "quiet") == (0, 0)
        brought = 0
        while store.metric("mainstem_disk_shares_held") == 0:
            assert produced(flood, "flood.all") == (0, 0)
            brought += RECORD_BYTES
            if brought > PACED_FROM:
                time.sleep(PACE_SECONDS)
        while (answer := produced(flood, "flood.all")) == (0, 0):
            pass  # as fast as it can: a pause might keep it within what all may bring
        assert answer[0] == 0, "it is not refused"
        assert answer[1] > 0, "it waits"
        for _ in range(5):
            assert produced(quiet, "quiet") == (0, 0)
        assert broker.metric("mainstem_quota_throttled_total") > 0
    eventually(lambda: store.metric("mainstem_disk_shares_held") == 1, what="the tenant held on")
