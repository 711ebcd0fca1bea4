"""The client behind a request, as the store and changes of metadata hear of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tests.broker.dispatch.test_dispatcher import fetch, produce
from tests.broker.harness import batch, serving
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.acted_for import acted_for
from mainstem.model import AppendResult, AppendTransaction, BatchAppend, ForwardedClient, QueueRead, QueueSlice
from mainstem.ports import ReadPlan, Session
from mainstem.prompt_future import PromptFuture
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.topics import CreatableTopic, CreateTopicsRequest


class Told:
    """A `ClientStore` that notes for whom it is used."""

    def __init__(self, behind: Any, client: ForwardedClient, used: list[tuple[str, str, int]]) -> None:
        self._behind, self._client, self._used = behind, client, used

    def append(
        self,
        batches: Sequence[BatchAppend],
        acks: int,
        *,
        copies_min: int | Mapping[int, int] = 0,
        transaction: AppendTransaction | None = None,
    ) -> PromptFuture[list[AppendResult]]:
        self._used.append(("append", *self._client[::2]))
        appended: PromptFuture[list[AppendResult]] = self._behind.append(batches, acks, copies_min=copies_min)
        return appended

    def read_at_once(self, plan: ReadPlan) -> None:
        self._used.append(("look", *self._client[::2]))
        self._behind.read_at_once(plan)

    async def read(self, reads: Sequence[QueueRead] | ReadPlan, bytes_max: int) -> list[QueueSlice]:
        self._used.append(("read", *self._client[::2]))
        slices: list[QueueSlice] = await self._behind.read(reads, bytes_max)
        return slices


def test_the_store_and_the_metadata_are_told_who_asks() -> None:
    async def scenario() -> None:
        async with serving() as node:
            topic = await node.topic()
            used: list[tuple[str, str, int]] = []
            asked_for: list[ForwardedClient | None] = []
            create = node.metadata.create_topics

            async def noted(*arguments: Any, **options: Any) -> Any:
                asked_for.append(acted_for())
                return await create(*arguments, **options)

            def forwarded(session: Session) -> ForwardedClient:
                return ForwardedClient("User:an", session.host, 5)

            node.metadata.create_topics = noted  # type: ignore[method-assign]
            node.broker.forwarded = forwarded
            node.broker.client_store = lambda client: Told(node.store, client, used)
            node.store.cold.add(topic.queue_id(0))  # its reads are not answered at once
            client = await node.connect()
            await client.call(produce(batch(b"a")), 9)
            found = await client.call(fetch(0), 12)
            assert found.responses[0].partitions[0].error_code == ErrorCode.NONE
            assert used == [(what, "User:an", 5) for what in ("append", "look", "look", "read")]
            wanted = CreatableTopic(name="new", num_partitions=1, replication_factor=1, assignments=(), configs=())
            await client.call(CreateTopicsRequest(topics=(wanted,), timeout_ms=1000), 5)
            assert asked_for == [ForwardedClient("User:an", "127.0.0.1", 5)]
            await client.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))
