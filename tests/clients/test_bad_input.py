"""Bytes no client would send, at a real node's port: each costs its own connection and nobody else anything."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.clients.drivers import librdkafka
from tests.clients.drivers.message import Message
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

from mainstem.protocol.headers import RequestHeader, write_request_header

MIB = 1 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def connection(node: Serving) -> Iterator[socket.socket]:
    host, port = node.kafka.rsplit(":", 1)
    with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as opened:
        yield opened


def closed_by_node(opened: socket.socket) -> bool:
    """Read to the end of the stream. Raises TimeoutError when the node keeps it open."""
    try:
        while opened.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


def memory_bytes(node: Serving) -> int:
    return int(Path(f"/proc/{node.pid}/statm").read_text().split()[1]) * PAGE_BYTES


def others_are_served(node: Serving, topic: str) -> None:
    librdkafka.produce(node.kafka, topic, [Message(b"still here")])
    (message,) = librdkafka.consume(node.kafka, topic, 1)
    assert message.value == b"still here"


def frame(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def header(api_key: int, version: int) -> bytes:
    return write_request_header(RequestHeader(api_key, version, 1, "hostile"))


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="http"),
        pytest.param(bytes.fromhex("16030100a5010000a10303") + bytes(200), id="tls"),
        pytest.param(b"\xff" * 5_000, id="ones"),
        pytest.param(bytes(5_000), id="zeros"),
        pytest.param(struct.pack(">i", 2**31 - 1) + b"x", id="two-gigabytes"),
        pytest.param(struct.pack(">i", -(2**31)), id="negative-length"),
        pytest.param(frame(random.Random(1).randbytes(300)), id="noise-in-a-frame"),
        pytest.param(frame(header(3, 9) + b"\xff\xff\xff\xff\x0f"), id="a-lying-array"),
        pytest.param(frame(header(11, 5) + b"\x7f\xff" + b"x" * 10), id="a-lying-string"),
        pytest.param(frame(header(0, 9) + b"\x00\xff\xff\0\0\0\0\xff\xff\xff\xff\x0f"), id="a-lying-produce"),
        pytest.param(frame(header(1, 99)), id="a-version-to-come"),
        pytest.param(frame(header(77, 0)), id="an-api-to-come"),
    ],
)
def test_what_is_no_request_ends_its_connection_only(node: Serving, topic: str, sent: bytes) -> None:
    lines = len(node.output_lines("closing connection"))
    with connection(node) as opened:
        opened.sendall(sent)
        assert closed_by_node(opened)
    eventually(lambda: len(node.output_lines("closing connection")) == lines + 1, what="one clear log line")
    others_are_served(node, topic)


@pytest.mark.parametrize("kept", [1, 4, 5, 20])
def test_a_stream_that_ends_inside_a_frame(node: Serving, topic: str, kept: int) -> None:
    whole = frame(header(18, 0) + bytes(100))
    with connection(node) as opened:
        opened.sendall(whole[:kept])
        opened.shutdown(socket.SHUT_WR)
        assert closed_by_node(opened)
    others_are_served(node, topic)


def test_noise_of_every_seed_leaves_the_node_serving(node: Serving, topic: str) -> None:
    noise = random.Random(20)
    for _ in range(200):
        with connection(node) as opened:
            body = noise.randbytes(noise.randrange(1, 200))
            if noise.random() < 0.7:  # a plausible head, so that the noise reaches the parsers
                key, version = noise.randrange(0, 61), noise.randrange(0, 14)
                body = frame(struct.pack(">hhih", key, version, 7, 4) + b"fuzz" + body)
            opened.sendall(body)
            opened.shutdown(socket.SHUT_WR)
            closed_by_node(opened)
    assert "Traceback" not in node.output
    others_are_served(node, topic)


def test_slow_senders_hold_little_memory_and_nobody_up(node: Serving, topic: str) -> None:
    others_are_served(node, topic)
    before = memory_bytes(node)
    whole = frame(header(0, 9) + bytes(MIB))
    with ExitStack() as stack:
        slow = [stack.enter_context(connection(node)) for _ in range(300)]
        for position in range(12):
            for opened in slow:
                opened.sendall(whole[position : position + 1])
        others_are_served(node, topic)
        assert memory_bytes(node) - before < 400 * MIB, "at most the room for what was announced, a MiB each"
    others_are_served(node, topic)


def test_announcing_much_and_sending_little_holds_nobody_up(node: Serving, topic: str) -> None:
    """The bytes announced here are several times what all requests together may hold."""
    before = memory_bytes(node)
    with ExitStack() as stack:
        for _ in range(40):
            opened = stack.enter_context(connection(node))
            opened.sendall(struct.pack(">i", 99 * MIB) + header(0, 9))
        others_are_served(node, topic)
        assert memory_bytes(node) - before < 100 * MIB


def test_a_peer_that_never_reads_is_bounded(node: Serving, topic: str) -> None:
    before = memory_bytes(node)
    with connection(node) as opened:
        opened.settimeout(1.0)
        with pytest.raises(TimeoutError):  # the node stops reading long before
            opened.sendall(frame(header(18, 0)) * 10_000_000)
        others_are_served(node, topic)
        assert memory_bytes(node) - before < 100 * MIB
