"""The store of other nodes as one client uses it: what is appended and read says for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainstem.model import AppendResult, AppendTransaction, BatchAppend, ForwardedClient, QueueSlice
from mainstem.ports import ReadPlan
from mainstem.prompt_future import PromptFuture
from mainstem.storage_link.remote_message_store import RemoteMessageStore


class RemoteClientStore:
    """Implements `ports.ClientStore`; made for each request."""

    __slots__ = ("_client", "_messages")

    def __init__(self, messages: RemoteMessageStore, client: ForwardedClient) -> None:
        self._messages = messages
        self._client = client

    def append(
        self,
        batches: Sequence[BatchAppend],
        acks: int,
        *,
        copies_min: int | Mapping[int, int] = 0,
        transaction: AppendTransaction | None = None,
    ) -> PromptFuture[list[AppendResult]]:
        return self._messages.append(batches, acks, copies_min=copies_min, transaction=transaction, client=self._client)

    async def read(self, reads: ReadPlan, bytes_max: int) -> list[QueueSlice]:
        return await self._messages.read(reads, bytes_max, client=self._client)
