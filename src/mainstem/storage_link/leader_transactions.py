"""Transactions in queues of any write group: those of write groups that this node leads by its own storage, the others
by calls to their leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from mainstem.errors import MainstemError
from mainstem.model import AbortedRange, ActiveProducer, Outcome, TransactionMarker
from mainstem.ports import TransactionMarkers
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.brokers import READS_MAX
from mainstem.rpc.messages.transactions import (
    ABORTED,
    DESCRIBED_MAX,
    MARKERS_MAX,
    PRODUCERS,
    WRITE_MARKERS,
    AskAborted,
    AskProducers,
    WriteMarkers,
)
from mainstem.storage_link.errors import AbortedUntold, LinkError
from mainstem.storage_link.leader_calls import LeaderCalls

Told = list[ActiveProducer] | Outcome


class LeaderTransactionMarkers:
    """`ports.TransactionMarkers` for all queues of the cluster."""

    def __init__(
        self,
        group_of: Callable[[int], int],
        leaders: LeaderCalls,
        leads: Callable[[int], bool] = lambda group: False,
        own: TransactionMarkers | None = None,
    ) -> None:
        """`own` writes markers of write groups that this node leads, as `leads` says."""
        self._group_of = group_of
        self._leaders = leaders
        self._leads = leads
        self._own = own

    async def write(self, markers: Sequence[TransactionMarker]) -> list[Outcome]:
        by_group: dict[int, list[int]] = {}
        for place, marker in enumerate(markers):
            by_group.setdefault(self._group_of(marker.queue_id), []).append(place)
        parts = [
            (group, places[first : first + MARKERS_MAX])
            for group, places in by_group.items()
            for first in range(0, len(places), MARKERS_MAX)
        ]
        told = await asyncio.gather(
            *(self._write(group, [markers[place] for place in places]) for group, places in parts)
        )
        outcomes = [Outcome.UNDECIDED] * len(markers)
        for (_group, places), found in zip(parts, told, strict=True):
            for place, outcome in zip(places, found, strict=True):
                outcomes[place] = outcome
        return outcomes

    async def _write(self, group: int, markers: Sequence[TransactionMarker]) -> list[Outcome]:
        if self._own is not None and self._leads(group):
            return await self._own.write(markers)
        try:
            reply = await self._leaders.call(group, WRITE_MARKERS, WriteMarkers(list(markers)))
        except LinkError:  # `NoLeader`, or it is not known whether they were written: they may be written again
            return [Outcome.UNDECIDED] * len(markers)
        except RpcError:
            return [Outcome.STORAGE_BUSY] * len(markers)
        return reply.message.outcomes

    async def producers(self, queue_ids: Sequence[int]) -> list[Told]:
        by_group: dict[int, list[int]] = {}
        for queue_id in dict.fromkeys(queue_ids):
            by_group.setdefault(self._group_of(queue_id), []).append(queue_id)
        found: dict[int, Told] = {}
        for group, asked in by_group.items():
            for first in range(0, len(asked), DESCRIBED_MAX):
                part = asked[first : first + DESCRIBED_MAX]
                found |= zip(part, await self._producers(group, part), strict=True)
        return [found[queue_id] for queue_id in queue_ids]

    async def _producers(self, group: int, queue_ids: Sequence[int]) -> list[Told]:
        if self._own is not None and self._leads(group):
            return await self._own.producers(queue_ids)
        try:
            reply = await self._leaders.call(group, PRODUCERS, AskProducers(list(queue_ids)))
        except (LinkError, RpcError):
            return [Outcome.NOT_LEADER] * len(queue_ids)
        return [one.producers if one.outcome is Outcome.OK else one.outcome for one in reply.message.queues]


class LeaderCommittedReads:
    """`ports.CommittedReads` of a broker without storage. Nobody is asked about messages that were told to this broker
    and are part of no transaction: most clients read committed messages unless they say otherwise."""

    def __init__(
        self,
        group_of: Callable[[int], int],
        leaders: LeaderCalls,
        is_plain: Callable[[int, int, int], bool] = lambda queue_id, first, end: False,
    ) -> None:
        """`is_plain`: whether it is known here that between two offsets of a queue nothing is part of a transaction."""
        self._group_of = group_of
        self._leaders = leaders
        self._is_plain = is_plain

    def aborted_at_once(self, ranges: Sequence[tuple[int, int, int]]) -> list[list[AbortedRange]] | None:
        return [[] for _ in ranges] if all(self._is_plain(*one) for one in ranges) else None

    async def aborted(
        self, ranges: Sequence[tuple[int, int, int]]
    ) -> list[list[AbortedRange] | MainstemError | OSError]:
        by_group: dict[int, list[int]] = {}
        for place, (queue_id, first, end) in enumerate(ranges):
            if not self._is_plain(queue_id, first, end):
                by_group.setdefault(self._group_of(queue_id), []).append(place)
        found: list[list[AbortedRange] | MainstemError | OSError] = [[] for _ in ranges]
        for group, places in by_group.items():
            for begin in range(0, len(places), READS_MAX):
                part = places[begin : begin + READS_MAX]
                for place, told in zip(part, await self._aborted(group, [ranges[it] for it in part]), strict=True):
                    found[place] = told
        return found

    async def _aborted(
        self, group: int, ranges: list[tuple[int, int, int]]
    ) -> Sequence[list[AbortedRange] | MainstemError]:
        try:
            reply = await self._leaders.call(group, ABORTED, AskAborted(ranges, reads_untold=True))
        except (LinkError, RpcError) as error:
            return [error] * len(ranges)
        told: list[list[AbortedRange] | MainstemError] = [*reply.message.ranges]
        for place, reason in reply.message.untold:
            told[place] = AbortedUntold(reason)
        return told
