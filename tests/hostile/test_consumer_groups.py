"""Members that say megabytes of themselves, in one group or in many, and wait in rebalances."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from tests.harness.patience import PATIENCE_MS
from tests.harness.serving import eventually
from tests.hostile.conftest import StartNode
from tests.hostile.honest import HonestClient
from tests.hostile.memory import MIB, resident_bytes, resident_bytes_most
from tests.hostile.wire import Wire

from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import HeartbeatRequest, JoinGroupRequest, JoinGroupRequestProtocol

JOIN_GROUP = 11
VERSION = 3
"""A member needs no second call."""


def join_request(group: str, size: int, rebalance_timeout_ms: int = PATIENCE_MS) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=PATIENCE_MS,
        rebalance_timeout_ms=rebalance_timeout_ms,
        member_id="",
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=bytes(size)),),
    )


def send_all(wire: Wire, content: bytes) -> None:
    """As far as the node reads it."""
    try:
        wire.socket.sendall(content)
    except OSError:
        pass


def test_members_that_wait_in_a_rebalance_do_not_hold_the_memory_for_requests(start_node: StartNode) -> None:
    """Six joins that together are more than all requests may hold; then their clients hang up."""
    node = start_node("server.request_bytes_in_flight_max=33554432", "groups.rebalance_delay_ms=60000")
    with HonestClient(node.kafka) as honest, ExitStack() as stack:
        honest.goes_on()
        wires = [stack.enter_context(Wire(node.kafka)) for _ in range(6)]
        content = wires[0].frame(join_request("large", 8 * MIB), VERSION)
        senders = [threading.Thread(target=send_all, args=(wire, content)) for wire in wires]
        for sender in senders:
            sender.start()
        honest.goes_on()
        for wire in wires:
            wire.close()
        honest.goes_on()
        for sender in senders:
            sender.join()
        assert node.metric("mainstem_consumer_group_members") <= 1
        large = Wire(node.kafka)
        stack.enter_context(large)
        large.send(join_request("small", 100_000), VERSION)  # more than a buffer has at first
        honest.goes_on()
    assert node.metric("mainstem_consumer_group_members") >= 1


def test_a_node_that_stops_answers_members_that_wait_for_others(start_node: StartNode) -> None:
    node = start_node("groups.rebalance_delay_ms=60000")
    with Wire(node.kafka) as wire:
        nobody = HeartbeatRequest(group_id="waiting", generation_id=1, member_id="nobody")
        eventually(
            lambda: wire.call(nobody, 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID, what="a coordinator that has loaded"
        )
        wire.send(join_request("waiting", 100), VERSION)
        eventually(lambda: node.metric("mainstem_consumer_group_members") == 1, what="a member that waits")
        assert node.stop() == 0
        assert wire.answer(JOIN_GROUP, VERSION).error_code == ErrorCode.NOT_COORDINATOR


def test_groups_full_of_metadata_are_bounded_all_together(start_node: StartNode) -> None:
    node = start_node("groups.members_bytes_max=33554432")
    codes = []
    with HonestClient(node.kafka) as honest, Wire(node.kafka) as wire:
        honest.goes_on()
        before = resident_bytes(node.pid)
        for number in range(150):
            answer = wire.call(join_request(f"group-{number}", 900_000), VERSION)
            codes.append(answer.error_code)
        honest.goes_on()
        assert node.metric("mainstem_consumer_group_members_bytes") <= 32 * MIB
        grown = resident_bytes_most(node.pid) - before
    assert codes.count(0) == 18, "as many as fit the share of an address"
    assert set(codes[18:]) == {15}
    assert grown < 120 * MIB, f"{grown / MIB:.0f} MiB"
