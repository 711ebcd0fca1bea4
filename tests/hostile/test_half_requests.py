"""Requests that announce much, arrive slowly or never end."""

from __future__ import annotations

import struct

from tests.harness.serving import eventually
from tests.hostile.conftest import StartNode
from tests.hostile.honest import HonestClient
from tests.hostile.wire import Wire

FRAME_BYTES = 12_000_000
HALVES = 16


def test_half_requests_that_take_all_memory_for_requests_keep_nobody_from_being_served(start_node: StartNode) -> None:
    node = start_node("server.request_bytes_in_flight_max=33554432")
    with HonestClient(node.kafka) as honest:
        honest.goes_on()
        wires = [Wire(node.kafka) for _ in range(HALVES)]
        try:
            for wire in wires:
                wire.socket.settimeout(0.2)
                try:
                    wire.socket.sendall(struct.pack(">i", FRAME_BYTES) + bytes(FRAME_BYTES // 2))
                except TimeoutError:  # the node has stopped reading: what it holds is what was aimed at
                    pass
            honest.goes_on()
        finally:
            for wire in wires:
                wire.close()
        honest.goes_on()
    eventually(lambda: node.metric("mainstem_server_request_bytes_in_flight") == 0, what="nothing is held any more")
