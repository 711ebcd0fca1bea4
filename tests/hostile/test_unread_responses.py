"""Clients that ask for much and read nothing, and crowds that ask for everything at once."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import ExitStack

from tests.harness.serving import eventually
from tests.hostile.conftest import StartNode
from tests.hostile.honest import FETCH, PRODUCE, HonestClient, create_topic, fetch_request, produce_request
from tests.hostile.memory import MIB, resident_bytes, resident_bytes_most
from tests.hostile.wire import Wire

from mainstem.protocol.messages.metadata import MetadataRequest
from mainstem.server.bounds.reader_credit import TRUSTED_BYTES

PARTITIONS = 8
FETCH_BYTES = 1_000_000
"""Of a response: what the allocator takes from its heap, where something small may keep it."""
DEAF = 300
TRUSTED = 60
ASKED_AHEAD = 16
"""Requests that one of them sends: the kernel takes some of what nobody reads, and the rest is the node's."""
CONSUMERS = 60
METADATA = 9


def fill(address: str, topic: str) -> None:
    """Batches of a KB that lie between those of other partitions, so that responses are copies."""
    with Wire(address) as wire:
        requests = [
            wire.frame(produce_request(topic, [bytes(1000)], number % PARTITIONS), PRODUCE)
            for number in range(1200 * PARTITIONS)
        ]
        sending = threading.Thread(target=lambda: wire.socket.sendall(b"".join(requests)))
        sending.start()
        for _ in requests:
            assert wire.answer(0, PRODUCE).responses[0].partition_responses[0].error_code == 0
        sending.join()


def test_who_never_reads_gets_little_to_leave_unread(start_node: StartNode) -> None:
    """Of responses of a megabyte as many as asked for; sockets included, a connection holds the first credit, what its
    peer's window took multiplied, and a batch for each further request."""
    node = start_node()
    create_topic(node.kafka, "full", PARTITIONS)
    fill(node.kafka, "full")
    with ExitStack() as attack:
        requests, sent = (node.metric(f"mainstem_server_{name}_total") for name in ("request_frames", "sent_bytes"))
        for _ in range(DEAF):
            wire = attack.enter_context(Wire(node.kafka, receive_bytes=4096))
            for _ in range(4):
                wire.send(fetch_request("full", 0, bytes_max=FETCH_BYTES), FETCH)
        eventually(
            lambda: node.metric("mainstem_server_request_frames_total") >= requests + 4 * DEAF,
            what="an answer to all requests",
        )
        made = node.metric("mainstem_server_sent_bytes_total") - sent
        made += node.metric("mainstem_server_response_bytes_unsent")
        with HonestClient(node.kafka) as honest:
            honest.goes_on()
        assert node.metric("mainstem_server_connections_unread_closed_total") == 0
    assert made / DEAF < 256 * 1024, f"{made / DEAF:,.0f} bytes for each"


def test_responses_that_nobody_reads_are_bounded_and_their_memory_is_given_back(start_node: StartNode) -> None:
    """Of clients that read until they are trusted, and then do not."""
    node = start_node("server.response_bytes_max=67108864")  # half of it is worth giving back
    create_topic(node.kafka, "full", PARTITIONS)
    fill(node.kafka, "full")
    with HonestClient(node.kafka) as honest, ExitStack() as bystanders:
        honest.goes_on()
        before = resident_bytes(node.pid)
        with ExitStack() as attack:
            for number in range(TRUSTED):
                wire = attack.enter_context(Wire(node.kafka, receive_bytes=64 * 1024))
                taken = 0
                while taken < TRUSTED_BYTES:
                    wire.send(fetch_request("full", 0, bytes_max=FETCH_BYTES), FETCH)
                    taken += len(wire.receive())
                for _ in range(ASKED_AHEAD):
                    wire.send(fetch_request("full", 0, bytes_max=FETCH_BYTES), FETCH)
                if number % 4 == 0:  # something small that stays
                    bystander = bystanders.enter_context(Wire(node.kafka))
                    bystander.call(produce_request("full", [bytes(1000)]), PRODUCE)
            honest.goes_on()
            eventually(
                lambda: node.metric("mainstem_server_connections_unread_closed_total") > 0,
                what="an end of those who do not read",
            )
            honest.goes_on()
        grown = resident_bytes_most(node.pid) - before
        eventually(lambda: node.metric("mainstem_server_response_bytes_held") == 0, what="nothing held")
        eventually(lambda: resident_bytes(node.pid) < before + 32 * MIB, what="memory given back")
        honest.goes_on()
    assert grown < 160 * MIB, f"{grown / MIB:.0f} MiB"


def test_a_crowd_of_consumers_of_patterns_shares_what_is_told_of_all_topics(start_node: StartNode) -> None:
    """They reconnect and ask for all topics, all at once, and read it only when everybody has asked."""
    node = start_node("server.response_bytes_max=33554432")
    for number in range(4):
        create_topic(node.kafka, f"wide-{number}", 50_000)
    with HonestClient(node.kafka) as honest, ExitStack() as stack:
        honest.goes_on()
        before = resident_bytes(node.pid)
        for _ in range(2):
            wires = [stack.enter_context(Wire(node.kafka, receive_bytes=4096)) for _ in range(CONSUMERS)]
            for wire in wires:
                wire.send(MetadataRequest(topics=None), METADATA)
            honest.goes_on()
            for wire in wires:
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
                (size,) = struct.unpack(">i", wire.exactly(4))
                assert size > 200_000 * 26
                left = size
                while left:
                    received = len(wire.socket.recv(min(left, 1 << 20)))
                    assert received, "the node closed"
                    left -= received
                wire.close()
        grown = resident_bytes_most(node.pid) - before
        honest.goes_on()
    assert grown < 160 * MIB, f"{grown / MIB:.0f} MiB"
