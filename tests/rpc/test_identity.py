"""The nodes that may talk to each other: both ends refuse, tell each other, and both logs name the reason."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.harness.patience import PATIENCE_SECONDS
from tests.rpc.raft_nodes import Node, connected, heartbeat, until

from mainstem.rpc.client import Client
from mainstem.rpc.errors import (
    DuplicateNode,
    IdentityMissing,
    IdentityRefused,
    OtherCluster,
    OwnAddress,
    ProtocolViolation,
    RpcError,
    UnexpectedNode,
    VersionMismatch,
)
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.rpc_server import RpcServer
from mainstem.rpc.wire.call_state import CalleeConnection, CallerConnection
from mainstem.rpc.wire.frames import FRAME_BYTES_MAX, FrameKind, RpcErrorCode, encode
from mainstem.rpc.wire.hello import MAGIC, Hello
from mainstem.rpc.wire.identity import ANY_NODE, NODE, Identity
from mainstem.rpc.wire.method import Failure, Method, Nothing, Reply

PING = Method(200, "test.ping", Nothing, Nothing)
NODES_PING = Method(201, "test.nodes_ping", Nothing, Nothing, nodes_only=True)

CLUSTER = "Qm9yZWFs"


def identity(node_id: int, *, cluster_id: str = CLUSTER, incarnation: int = 0) -> Identity:
    return Identity(cluster_id, node_id, (incarnation or node_id).to_bytes(16, "big"))


def hello(node: Identity | None, seeks: int = ANY_NODE) -> Hello:
    return Hello(role="client" if node is None else NODE, node=node, seeks=seeks)


def meet(calling: Hello, called: Hello) -> tuple[RpcError | None, RpcError | None]:
    """The verdict of each end on the other's hello; the other is told the first one."""
    caller, callee = CallerConnection(calling), CalleeConnection(called)
    errors: list[RpcError | None] = []
    for end, heard in ((caller, callee), (callee, caller)):
        try:
            for buffer in heard.hello():
                list(end.receive(buffer))
            errors.append(None)
        except RpcError as error:
            errors.append(error)
    return errors[0], errors[1]


@pytest.mark.parametrize(
    ("calling", "called", "at_caller", "at_callee"),
    [
        (hello(identity(1), 2), hello(identity(2)), None, None),
        (hello(identity(1)), hello(identity(2)), None, None),
        (hello(None), hello(identity(2)), None, None),
        (hello(None), hello(None), None, None),
        (hello(identity(1), 2), hello(identity(2, cluster_id="other")), OtherCluster, OtherCluster),
        (hello(identity(1), 2), hello(identity(1, incarnation=9)), DuplicateNode, DuplicateNode),
        (hello(identity(1), 2), hello(identity(1)), OwnAddress, OwnAddress),
        (hello(identity(1), 2), hello(identity(3)), UnexpectedNode, UnexpectedNode),
        (hello(None, 2), hello(identity(3)), UnexpectedNode, None),
        (hello(identity(1), 2), hello(None), IdentityMissing, None),
        (Hello(newest=1), Hello(newest=2), None, None),
        (Hello(newest=2), Hello(oldest=2, newest=3), None, None),
        (Hello(newest=1), Hello(oldest=2, newest=2), VersionMismatch, VersionMismatch),
        (Hello(oldest=3, newest=3), Hello(oldest=1, newest=2), VersionMismatch, VersionMismatch),
    ],
)
def test_who_may_talk_to_whom(calling: Hello, called: Hello, at_caller: type | None, at_callee: type | None) -> None:
    first, second = meet(calling, called)
    assert (first and type(first), second and type(second)) == (at_caller, at_callee)


def test_neighbouring_versions_speak_the_older_one() -> None:
    for versions in ((1, 2), (2, 1), (2, 2)):
        caller, callee = (
            CallerConnection(Hello(newest=versions[0])),
            CalleeConnection(Hello(newest=versions[1])),
        )
        for buffer in caller.hello():
            assert list(callee.receive(buffer)) == []
        for buffer in callee.hello():
            assert caller.receive(buffer) == []
        assert caller.version == callee.version == min(versions)


@pytest.mark.parametrize(
    "node",
    [
        {"cluster_id": "", "node_id": 1, "incarnation": bytes(16)},
        {"cluster_id": "c", "node_id": -1, "incarnation": bytes(16)},
        {"cluster_id": "c", "node_id": 1, "incarnation": bytes(15)},
        {"cluster_id": "c" * 129, "node_id": 1, "incarnation": bytes(16)},
        {"cluster_id": "c", "node_id": "1", "incarnation": bytes(16)},
        {"cluster_id": "c"},
        None,
        17,
    ],
)
def test_an_identity_that_is_none_is_refused(node: object) -> None:
    told = {"magic": MAGIC, "frame_bytes_max": FRAME_BYTES_MAX, "role": NODE, "node": node}
    with pytest.raises(ProtocolViolation):
        list(CalleeConnection().receive(b"".join(encode(FrameKind.HELLO, 0, body=msgspec.msgpack.encode(told)))))


def test_a_reason_nobody_knows_is_a_refusal_all_the_same() -> None:
    body = msgspec.msgpack.encode(Failure("too warm", "weather"))
    with pytest.raises(IdentityRefused, match="too warm") as caught:
        CallerConnection().receive(b"".join(encode(FrameKind.ERROR, 0, code=RpcErrorCode.IDENTITY, body=body)))
    assert caught.value.by_peer
    assert CallerConnection().farewell(caught.value) == []


# --- over sockets ---------------------------------------------------------------------------------------


def with_server(node: Identity | None, test: Callable[[str, int, list[RpcCall[Any]]], Any]) -> None:
    async def run() -> None:
        calls: list[RpcCall[Any]] = []
        handlers = Handlers()

        def ping(call: RpcCall[Nothing]) -> Reply[Nothing]:
            calls.append(call)
            return Reply(Nothing())

        handlers.prompt(PING, ping)
        handlers.prompt(NODES_PING, ping)
        server = RpcServer(handlers, name="server", node=node)
        host, port = await server.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await test(host, port, calls)
        finally:
            await server.close()

    asyncio.run(run())


def test_nodes_may_call_what_clients_may_not() -> None:
    async def test(host: str, port: int, calls: list[RpcCall[Any]]) -> None:
        async with Client(host, port) as client, Client(host, port, node=identity(1), seeks=2) as node:
            with pytest.raises(IdentityMissing, match=r"test\.nodes_ping: only nodes of this cluster"):
                await client.call(NODES_PING, Nothing(), timeout_seconds=20)
            await client.call(PING, Nothing(), timeout_seconds=20)
            await node.call(NODES_PING, Nothing(), timeout_seconds=20)
            assert [call.node for call in calls] == [None, identity(1)]
            assert [call.connection for call in calls] == [1, 2]

    with_server(identity(2), test)


def test_a_hello_from_before_identities_is_welcome() -> None:
    async def test(host: str, port: int, calls: list[RpcCall[Any]]) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        old = {
            "magic": MAGIC,
            "oldest": 1,
            "newest": 1,
            "frame_bytes_max": FRAME_BYTES_MAX,
            "name": "splitter",
        }
        writer.write(b"".join(encode(FrameKind.HELLO, 0, body=msgspec.msgpack.encode(old))))
        (length,) = struct.unpack("<I", await reader.readexactly(4))
        await reader.readexactly(length)
        nothing = msgspec.msgpack.encode(Nothing())
        for request_id, method in ((1, NODES_PING), (2, PING)):
            writer.write(b"".join(encode(FrameKind.REQUEST, request_id, code=method.number, body=nothing)))
        answers = b""
        while len(calls) < 1 or b"only nodes" not in answers:
            answers += await reader.read(4096)
        writer.close()

    with_server(identity(2), test)


@pytest.mark.parametrize(
    ("caller", "seeks", "refused", "said"),
    [
        (identity(1, cluster_id="other"), 2, OtherCluster, "cluster 'Qm9yZWFs'"),
        (identity(2, incarnation=7), 3, DuplicateNode, "give one of the two another node_id"),
        (identity(2), 3, OwnAddress, "leads node 2 to itself"),
        (identity(1), 3, UnexpectedNode, "looked for node 3"),
    ],
)
def test_both_logs_name_the_reason(
    caller: Identity, seeks: int, refused: type[IdentityRefused], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(host: str, port: int, calls: list[RpcCall[Any]]) -> None:
        async with Client(host, port, node=caller, seeks=seeks) as client:
            with pytest.raises(refused, match=said):
                await client.call(PING, Nothing(), timeout_seconds=20)
            await until(lambda: "node connection from" in caplog.text)
        assert calls == []

    with caplog.at_level(logging.WARNING, "mainstem.rpc.rpc_server"):
        with_server(identity(2), test)
    assert f"node {caller.node_id}" in caplog.text


def test_two_nodes_with_one_id_are_found_by_a_third() -> None:
    async def test(host: str, port: int, calls: list[RpcCall[Any]]) -> None:
        first, second = identity(1, incarnation=7), identity(1, incarnation=8)
        again = Client(host, port, node=first)
        async with Client(host, port, node=first) as one, Client(host, port, node=second) as other, again:
            await one.call(PING, Nothing(), timeout_seconds=20)
            with pytest.raises(DuplicateNode, match="two nodes call themselves node 1") as caught:
                await other.call(PING, Nothing(), timeout_seconds=20)
            assert caught.value.by_peer
            # the one that was there first is not disturbed, nor does the one refused count
            await one.call(PING, Nothing(), timeout_seconds=20)
            await again.call(PING, Nothing(), timeout_seconds=20)

    with_server(identity(2), test)


def test_a_node_that_lost_its_disk_comes_back_once_it_is_gone() -> None:
    async def test(host: str, port: int, calls: list[RpcCall[Any]]) -> None:
        for incarnation in (7, 8):
            client = Client(host, port, node=identity(1, incarnation=incarnation))
            while True:
                try:
                    await client.call(PING, Nothing(), timeout_seconds=20)
                    break
                except DuplicateNode:  # the server has yet to see the end of the first connection
                    continue
            client.close()
        assert [call.node.incarnation[-1] for call in calls if call.node] == [7, 8]

    with_server(identity(2), test)


def test_the_exchange_names_its_trouble_and_ends_it_when_the_address_is_corrected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        one, two, stranger = Node(1), Node(2), Node(2, cluster_id="other")
        await stranger.listen()
        async with connected(one, two):
            one.exchange.set_peers({2: stranger.address})
            await until(lambda: "cluster 'other'" in one.exchange.trouble(2))
            one.exchange.send(0, [heartbeat(1, 2)])
            await one.members[0].until(lambda: 2 in one.members[0].unreachable_nodes)
            one.exchange.set_peers({2: two.address})
            one.exchange.send(0, [heartbeat(1, 2)])
            await two.members[0].until(lambda: len(two.members[0].messages) == 1)
            await until(lambda: not one.exchange.trouble(2))
            assert stranger.members == {}
        await stranger.close()

    asyncio.run(run())
    assert "no connection to node 2" in caplog.text
    assert "is not of cluster 'other'" in caplog.text
