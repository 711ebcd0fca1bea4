"""Clients that have not shown who they are, and make a node hold what they can: as much as its bounds say, whatever
they send and however little they read. The node's process is measured, with all that the interpreter and OpenSSL
take."""

from __future__ import annotations

import json
import selectors
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.harness.free_port import HOST, free_port
from tests.harness.serving import eventually
from tests.hostile.conftest import StartNode
from tests.hostile.honest import HonestClient
from tests.hostile.memory import KIB, MIB, resident_bytes, resident_bytes_most
from tests.hostile.wire import Wire
from tests.server.tls.certificates import Authority

from mainstem.protocol.messages import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest

STRANGERS_MAX = 120
"""Clients that a node here lets in unshown, whatever their addresses."""
SOURCES = tuple(f"127.0.0.{number}" for number in range(2, 8))
FRAME_BYTES_MAX = 64 * KIB
SENT_SECONDS_MAX = 0.2
"""A node that takes no more of anybody for so long has what it takes, or is slow: then the bound is easier to keep."""


class Doors(NamedTuple):
    """The addresses of a node that strangers come to."""

    clear: str
    tls: str
    http: str
    rpc: str


class Flood(NamedTuple):
    """`begin` returns the connections, which stay open; they may make the node grow by so much."""

    begin: Callable[[Doors], list[Wire]]
    grown_bytes_max: int


def pour(wires: Sequence[Wire], content: bytes) -> None:
    """To all of them at once, as far as the node takes it."""
    left = {wire: memoryview(content) for wire in wires}
    with selectors.DefaultSelector() as writable:
        for wire in wires:
            wire.socket.setblocking(False)
            writable.register(wire.socket, selectors.EVENT_WRITE, wire)
        while left and (ready := writable.select(SENT_SECONDS_MAX)):
            for key, _ in ready:
                wire = key.data
                try:
                    left[wire] = left[wire][wire.socket.send(left[wire]) :]
                except BlockingIOError:
                    continue
                except ConnectionError:
                    left[wire] = left[wire][:0]
                if not left[wire]:
                    writable.unregister(wire.socket)
                    del left[wire]


def crowd(address: str, count: int) -> list[Wire]:
    """So many connections, of several addresses in turn."""
    return [Wire(address, source=SOURCES[number % len(SOURCES)], receive_bytes=4096) for number in range(count)]


def says_nothing(doors: Doors) -> list[Wire]:
    return crowd(doors.clear, 3 * STRANGERS_MAX)


def reads_nothing(doors: Doors) -> list[Wire]:
    """A megabyte of requests would bring sixteen of answers."""
    wires = crowd(doors.clear, STRANGERS_MAX)
    pour(wires, wires[0].frame(ApiVersionsRequest(), 0) * 30_000)
    return wires


def shaken(wire: Wire, token_bytes: int) -> bytes:
    """A handshake, and a token of so many bytes."""
    token = SaslAuthenticateRequest(auth_bytes=bytes(token_bytes))
    return wire.frame(SaslHandshakeRequest(mechanism="PLAIN"), 1) + wire.frame(token, 2)


def nearly_whole_tokens(doors: Doors) -> list[Wire]:
    """As large as they may be, but for the last byte."""
    wires = crowd(doors.clear, STRANGERS_MAX)
    pour(wires, shaken(wires[0], FRAME_BYTES_MAX - 100)[:-1])
    return wires


def tokens_too_large(doors: Doors) -> list[Wire]:
    wires = crowd(doors.clear, STRANGERS_MAX)
    pour(wires, shaken(wires[0], MIB))
    return wires


def announces_much(doors: Doors) -> list[Wire]:
    wires = crowd(doors.clear, STRANGERS_MAX)
    pour(wires, struct.pack(">i", 90 * MIB) + bytes(MIB))
    return wires


def half_handshakes(doors: Doors) -> list[Wire]:
    """A hello of 128 KiB, the largest that OpenSSL takes, but for its end."""
    announced = 128 * KIB - 1
    hello = b"\x01" + announced.to_bytes(3, "big") + bytes(120 * KIB)
    records = b"".join(
        b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part
        for part in (hello[at : at + 16_000] for at in range(0, len(hello), 16_000))
    )
    wires = crowd(doors.tls, 2 * STRANGERS_MAX)
    pour(wires, records)
    return wires


def http_bodies(doors: Doors) -> list[Wire]:
    wires = crowd(doors.http, STRANGERS_MAX)
    head = "POST /v1/tenants/set HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n"
    announced = f"{head}Content-Length: {90 * MIB}\r\n\r\n".encode() + bytes(MIB)
    in_chunks = f"{head}Transfer-Encoding: chunked\r\n\r\n{MIB:x}\r\n".encode() + bytes(MIB)
    pour(wires[::2], announced)
    pour(wires[1::2], in_chunks)
    return wires


def http_heads(doors: Doors) -> list[Wire]:
    wires = crowd(doors.http, STRANGERS_MAX)
    pour(wires, b"GET / HTTP/1.1\r\nX-Much: " + b"x" * MIB)
    return wires


def between_nodes(doors: Doors) -> list[Wire]:
    """Peers without a certificate of the nodes' authority. The event loop's own TLS takes 256 KiB for each handshake,
    of which there are 32 for an address at a time."""
    wires = crowd(doors.rpc, STRANGERS_MAX)
    pour(wires, struct.pack(">I", 90 * MIB) + bytes(MIB))
    return wires


FLOODS = {
    "say nothing": Flood(says_nothing, 12 * MIB),
    "read nothing": Flood(reads_nothing, 24 * MIB),
    "nearly whole tokens": Flood(nearly_whole_tokens, 24 * MIB),
    "tokens too large": Flood(tokens_too_large, 24 * MIB),
    "announce much": Flood(announces_much, 24 * MIB),
    "half handshakes": Flood(half_handshakes, 96 * MIB),
    "HTTP bodies": Flood(http_bodies, 24 * MIB),
    "HTTP heads": Flood(http_heads, 24 * MIB),
    "between nodes": Flood(between_nodes, 64 * MIB),
}


@pytest.mark.parametrize("name", FLOODS)
def test_strangers_make_a_node_hold_little(name: str, start_node: StartNode, tmp_path: Path) -> None:
    """Beside an honest client, which is served all the while and afterwards."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node")
    clear, tls = (f"{HOST}:{free_port()}" for _ in range(2))
    listeners = {
        "CLEAR": {"listen": clear, "protocol": "SASL_PLAINTEXT"},
        "TLS": {"listen": tls, "protocol": "SASL_SSL", "certificate": certificate, "key": key},
    }
    node = start_node(
        *(f"server.listeners.{listener}={json.dumps(how)}" for listener, how in listeners.items()),
        "sasl.mechanisms=PLAIN,SCRAM-SHA-256",
        f"server.connections_unauthenticated_max={STRANGERS_MAX}",
        f"rpc_tls.certificate={certificate}",
        f"rpc_tls.key={key}",
        f"rpc_tls.ca={authority.ca}",
    )
    doors = Doors(clear, tls, node.http, node.rpc)
    flood = FLOODS[name]
    with HonestClient(node.kafka) as honest, ExitStack() as attack:
        honest.goes_on()
        for address in (clear, tls):  # what the first connection makes once is not counted
            with Wire(address) as first:
                pour([first], first.frame(ApiVersionsRequest(), 0))
        before = resident_bytes(node.pid)
        for wire in flood.begin(doors):
            attack.callback(wire.close)
        honest.goes_on()
        most = resident_bytes_most(node.pid)
        attack.close()
        eventually(lambda: node.metric("mainstem_server_connections") == 1, what="an end of the strangers")
        honest.goes_on()
    assert most - before < flood.grown_bytes_max, f"{(most - before) / MIB:.1f} MiB"
