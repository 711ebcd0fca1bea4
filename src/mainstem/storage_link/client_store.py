"""The store of other nodes as one client uses it: what is appended and read says for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainstem.model import AppendResult, AppendTransaction, BatchAppend, ForwardedClient, QueueRead, QueueSlice
from mainstem.ports import ReadPlan
from mainstem.prompt_future import PromptFuture
from mainstem.storage_link.remote_message_store import RemoteMessageStore


class RemoteClientStore:
    """Implements `ports.ClientStore`; made for each request."""

    __slots__ = ("_client", "_messages", "_round", "_taken")

    def __init__(self, messages: RemoteMessageStore, client: ForwardedClient) -> None:
        self._messages = messages
        self._client = client
        self._round = -1
        self._taken: dict[int, int] = {}
        """Bytes that the round under way has of tails, by the node that told of them."""

    def append(
        self,
        batches: Sequence[BatchAppend],
        acks: int,
        *,
        copies_min: int | Mapping[int, int] = 0,
        transaction: AppendTransaction | None = None,
    ) -> PromptFuture[list[AppendResult]]:
        return self._messages.append(batches, acks, copies_min=copies_min, transaction=transaction, client=self._client)

    def read_at_once(self, plan: ReadPlan) -> None:
        if plan.round != self._round:  # what the round before found is found anew, or was not wanted
            for node_id, size in self._taken.items():
                self._messages.takings.add(node_id, self._client.principal, -size)
            self._taken.clear()
            self._round = plan.round
        self._messages.read_at_once(plan, self._took)

    def _took(self, node_id: int, size_bytes: int) -> None:
        self._taken[node_id] = self._taken.get(node_id, 0) + size_bytes
        self._messages.takings.add(node_id, self._client.principal, size_bytes)

    async def read(self, reads: Sequence[QueueRead] | ReadPlan, bytes_max: int) -> list[QueueSlice]:
        return await self._messages.read(reads, bytes_max, client=self._client)
