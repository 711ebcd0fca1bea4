"""Two nodes of which one serves no partition of the audit's topic: its records come there by a real call."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.broker.test_audit_writer import Written
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.node.access.audit_calls import AuditCalls, serve_audit
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.messages.audit import RECORD_BYTES_MAX
from mainstem.rpc.node_calls import NodeCalls
from mainstem.rpc.rpc_server import RpcServer
from mainstem.rpc.wire.identity import Identity
from mainstem.security.audit.audit_log import AuditEvent, AuditLog
from mainstem.security.audit.config import ADMIN, AuditConfig


def identity(node_id: int) -> Identity:
    return Identity("cluster", node_id, node_id.to_bytes(16, "big"))


def test_records_of_a_node_without_a_partition_come_to_the_topic_by_another_one() -> None:
    async def story() -> None:
        config = AuditConfig(records_per_second=10_000)
        leads, lacks = Written(config), Written(config)
        handlers = Handlers()
        serve_audit(handlers, leads.writer)
        server = RpcServer(handlers, name="node 2", node=identity(2))
        host, port = await server.start("127.0.0.1", 0)
        calls = NodeCalls(identity(1), moved=lambda _addresses: None)
        try:
            lacks.write_elsewhere(AuditCalls(calls).hand, leader=2)
            lacks.add(1203)
            await lacks.writer.write()
            assert not lacks.audit.dropped, "nobody knows where node 2 is: they wait"
            calls.know(2, f"{host}:{port}")
            await lacks.writer.write()
            assert leads.topic() is None, "who has no topic either takes nothing"
            leads.add(1)
            await leads.writer.write()
            await lacks.writer.write()
            expected = sorted(["topic:1", *(f"topic:{number}" for number in range(1, 1204))])
            assert await leads.in_topic() == expected
            assert not lacks.audit.dropped
        finally:
            calls.close()
            await server.close()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


def test_a_node_without_others_hands_nothing_on() -> None:
    assert asyncio.run(AuditCalls(None).hand(2, [b"{}"])) is False


@pytest.mark.parametrize("letter", ["\x00", "\U0001f600", "\\"])
def test_the_longest_record_is_taken(letter: str) -> None:
    lane = Written(AuditConfig())
    log = AuditLog(AuditConfig(), lane.fakes.broker.clock)
    log.add(AuditEvent(ADMIN, *(letter * 1000 for _ in range(8))))
    (record,) = log.take()
    assert len(record.content) < RECORD_BYTES_MAX
    assert json.loads(record.content)["principal"] == letter * 255
