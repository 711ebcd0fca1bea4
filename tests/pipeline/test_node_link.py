"""The calls of a splitter whose answers it has to understand, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from tests.cli.fake_node import serving
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.console.views.of_split import SharedStoreView, SplitEndpoint
from mainstem.node.storage_role.splitter_end import store_access
from mainstem.pipeline.errors import NamesRefused
from mainstem.pipeline.link.node_link import (
    ENDPOINT_PATH,
    INTENDED_AT_ONCE_MAX,
    Endpoint,
    NodeLink,
    find_endpoint,
)
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.tier import INTEND_FILES, STORE_ACCESS, IntendFiles, IntendReply
from mainstem.rpc.rpc_server import RpcServer
from mainstem.rpc.wire.method import Reply
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.shared_store.shared_store import SharedStore

USUAL = ObjectStoreConfig()


def with_node(
    answer: Callable[[IntendFiles], str],
    use: Callable[[NodeLink], None],
    config: ObjectStoreConfig = USUAL,
) -> None:
    """Have a thread use a link to a node that gives these refusals, and reaches its shared store so."""

    async def handle(call: RpcCall[IntendFiles]) -> Reply[IntendReply]:
        return Reply(IntendReply(answer(call.request)))

    async def run() -> None:
        handlers = Handlers()
        handlers.unary(INTEND_FILES, handle)
        handlers.unary(STORE_ACCESS, partial(store_access, config))
        server = RpcServer(handlers, name="node")
        host, port = await server.start("127.0.0.1", 0)
        node = NodeLink(f"{host}:{port}", "test")
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.to_thread(use, node)
        finally:
            node.close()
            await server.close()

    asyncio.run(run())


def test_names_are_announced_a_bounded_number_at_a_time() -> None:
    asked: list[IntendFiles] = []
    names = [f"0-{number:016x}-a.pack" for number in range(2 * INTENDED_AT_ONCE_MAX + 1)]

    def answer(request: IntendFiles) -> str:
        asked.append(request)
        return ""

    with_node(answer, lambda node: node.intend(3, names))
    assert [request.group for request in asked] == [3, 3, 3]
    assert [name for request in asked for name in request.names] == names
    assert max(len(request.names) for request in asked) == INTENDED_AT_ONCE_MAX


def test_a_refusal_is_an_error_that_says_why() -> None:
    def use(node: NodeLink) -> None:
        with pytest.raises(NamesRefused, match="1 files of write group 3: node 2 leads it"):
            node.intend(3, ["a.run"])

    with_node(lambda _request: "node 2 leads it", use)


def test_an_endpoint_says_where_the_shared_store_is_and_its_rpc_port_how_it_is_reached() -> None:
    config = ObjectStoreConfig(endpoint="http://127.0.0.1:9000", options={"secret_access_key": "hush"})

    def use(node: NodeLink) -> None:
        host, _, port = node.address.partition(":")
        place = SharedStoreView(url="s3://b", folder="f")
        view = SplitEndpoint(host=host, port=int(port), store_dir="/cache", shared_store=place)
        told = msgspec.json.encode(view)
        assert b"hush" not in told
        with serving({ENDPOINT_PATH: (200, told)}) as http:
            found = find_endpoint(http)
        assert found.shared_store == SharedStore(url="s3://b", folder="f", config=config)

    with_node(lambda _request: "", use, config)


def test_the_endpoint_of_an_older_node_has_no_shared_store() -> None:
    older = {"host": "h", "port": 1, "store_dir": "/store"}
    assert msgspec.json.decode(msgspec.json.encode(older), type=Endpoint).shared_store is None
