"""The `MessageStore` of a broker without storage: it appends to and reads from the leaders of the write groups.

Batches are copied once here, into messages to the leaders (`append_lane.py`), and are never taken apart. Readers at the
ends of their queues are answered from tails that the leaders keep this broker told of (`tail_cache.py`); all others by
the leaders themselves.

A leader whose journal lacks memory says so in its answers. Until it has some, producers that share this broker with
others, and bring much, wait in their sockets, as they do at a node that stores (`Journal.lacks_memory`).

Bounds: what waits to be appended is bounded by `BACKLOG_BYTES_MAX`, beyond which no producer is read from; an answer to
a read by the leader's own bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

from mainstem.model import (
    AppendResult,
    AppendTransaction,
    BatchAppend,
    ForwardedClient,
    Outcome,
    QueueOffsets,
    QueueRead,
    QueueSlice,
    Sample,
    TimestampOffset,
)
from mainstem.ports import ANY_BYTES, OF_ALL_TOPICS, SENT_ON, ReadPlan
from mainstem.prompt_future import PromptFuture
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.brokers import (
    MEMORY,
    OFFSETS,
    QUEUES_MAX,
    READ,
    READS_MAX,
    TIMESTAMP,
    AppendedBatch,
    AppendPart,
    AskOffsets,
    AskTimestamp,
    ReadQueues,
)
from mainstem.rpc.messages.forwarded import ClientTold, client_told
from mainstem.rpc.wire.method import Nothing
from mainstem.storage_link.append_lane import AppendLane, AppendTicket, PendingPart
from mainstem.storage_link.errors import NoLeader
from mainstem.storage_link.leader_calls import CALL_SECONDS_MAX, LeaderAt, LeaderCalls
from mainstem.storage_link.tail_cache import TailCache, TailWaiter
from mainstem.storage_link.tail_followers import TailFollowers, slices_of
from mainstem.storage_link.tail_takings import TailTakings

BACKLOG_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of batches that no leader has answered for: half of what a node takes in open calls of one connection, so that
none is refused there."""

MEMORY_SECONDS_MAX = 1.0
"""For longer than this no leader is waited for that lacks memory: three times as long as it waits itself for one
segment, and the next answer says whether it lacks some again."""

POLL_SECONDS = 0.1
"""A reader of a queue without a known leader, or beyond what may be followed, looks again after so long."""

FOLLOWED_MAX = 10_000
"""Queues whose tails are kept: as many as one session takes."""

NO_OFFSETS = QueueOffsets(-1, -1, -1, -1, -1)

log = logging.getLogger(__name__)


class RemoteMessageStore:
    """Implements `ports.MessageStore`, `ports.Intake` and `ports.Statistics`. `close` it in the end."""

    def __init__(
        self,
        groups: int,
        group_of: Callable[[int], int],
        leaders: LeaderCalls,
        random: Random,
        is_misplaced: Callable[[int], bool] = lambda queue_id: False,
    ) -> None:
        """`is_misplaced`: clients of such a queue are told to look for its broker. Owners of logs are no clients."""
        self._is_misplaced = is_misplaced
        self._group_of = group_of
        self._leaders = leaders
        self.told_to_wait: Callable[[str, float], None] = lambda principal, seconds: None
        """Is told of principals whose tenants have filled a leader's disk 1, and are to bring nothing for so long."""
        self._lanes = self._lanes_of(range(groups))
        self._backlog_bytes = 0
        self._lacking: dict[int, asyncio.Task[None]] = {}
        """Leaders that lack memory, and who waits until they do not."""
        self._waiting_for_room: list[Callable[[], object]] = []
        self._cache = TailCache()
        self.takings = TailTakings()
        self._followers = TailFollowers(self._cache, self.takings, leaders, group_of, random)
        self._reads_asked = 0

    def grow(self, groups: int) -> None:
        """From now on there are so many write groups."""
        self._lanes += self._lanes_of(range(len(self._lanes), groups))

    def _lanes_of(self, groups: range) -> list[AppendLane]:
        return [AppendLane(group, self._leaders, self._let_go, self._hold_back, self._tell_to_wait) for group in groups]

    def _tell_to_wait(self, principal: str, seconds: float) -> None:
        self.told_to_wait(principal, seconds)

    async def run(self) -> None:
        """Let go of what nobody reads, until cancelled."""
        await self._followers.run()

    async def close(self) -> None:
        await self._followers.close()
        for lane in self._lanes:
            await lane.close()
        waiting = list(self._lacking.values())
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    # --- append -------------------------------------------------------------------------------------------

    def append(
        self,
        batches: Sequence[BatchAppend],
        acks: int,
        *,
        copies_min: int | Mapping[int, int] = 0,
        owner_epoch: int | None = None,
        transaction: AppendTransaction | None = None,
        client: ForwardedClient | None = None,
    ) -> PromptFuture[list[AppendResult]]:
        """`client`: whose batches they are; None: this broker's own."""
        by_group: dict[int, tuple[list[int], list[AppendedBatch], list[memoryview]]] = {}
        count = 0
        sent_away: list[int] = []
        for place, batch in enumerate(batches):
            count += 1
            # who wants no answer could not be sent away
            if acks and owner_epoch is None and self._is_misplaced(batch.queue_id):
                sent_away.append(place)
                continue
            places, described, views = by_group.setdefault(self._group_of(batch.queue_id), ([], [], []))
            places.append(place)
            described.append(AppendedBatch(len(batch.data), batch.queue_id, *batch[2:]))
            views.append(batch.data)
        ticket = AppendTicket(count)
        told = client_told(client)
        for group, (places, described, views) in by_group.items():
            copies = copies_min if isinstance(copies_min, int) else copies_min.get(group, 0)
            part = AppendPart(acks, copies, owner_epoch, described, told, transaction)
            pending = PendingPart(part, b"".join(views), ticket.expect(places))
            self._backlog_bytes += pending.size
            self._lanes[group].add(pending)
        if sent_away:
            ticket.expect(sent_away)([AppendResult(Outcome.NOT_LEADER)] * len(sent_away))
        if acks == 0:
            return PromptFuture.settled([AppendResult(Outcome.OK)] * count)
        ticket.one_settled()
        return ticket

    def _let_go(self, size: int) -> None:
        self._backlog_bytes -= size
        if self._waiting_for_room and self.has_room():
            waiting, self._waiting_for_room = self._waiting_for_room, []
            for told in waiting:
                asyncio.get_running_loop().call_soon(told)

    def _hold_back(self, node_id: int) -> None:
        """A leader lacks memory."""
        if node_id not in self._lacking:
            self._lacking[node_id] = asyncio.get_running_loop().create_task(self._wait_for_memory(node_id))

    async def _wait_for_memory(self, node_id: int) -> None:
        try:
            await self._leaders.calls.call(node_id, MEMORY, Nothing(), timeout_seconds=MEMORY_SECONDS_MAX)
        except RpcError as error:
            log.debug("node %d does not say when it has memory: %s", node_id, error)
        finally:
            del self._lacking[node_id]

    def has_room(self, part: float = 1.0) -> bool:
        if part < 1.0 and self._lacking:
            return False
        return self._backlog_bytes <= part * BACKLOG_BYTES_MAX

    def tell_of_room(self, told: Callable[[], object]) -> None:
        if self.has_room():
            asyncio.get_running_loop().call_soon(told)
        else:
            self._waiting_for_room.append(told)

    # --- read ---------------------------------------------------------------------------------------------

    def read_at_once(self, plan: ReadPlan, took: Callable[[int, int], object] = lambda node_id, size: None) -> None:
        """`took` is told of each tail that is read: which node told of it, and how many bytes of batches it gave."""
        while (wanted := plan.wanted(1, ANY_BYTES)).reads:
            misplaced = self._is_misplaced(wanted.reads[0].queue_id)
            if misplaced and not _may_stay(plan):
                plan.put(_none_of(wanted.reads)[0])
                continue
            found = self._cache.read(wanted.reads[0], wanted.bytes_max, whole_first=wanted.whole_first)
            if found is None:
                return
            if _settle(plan, found, misplaced=misplaced):
                took(self._cache.tails[found.queue_id].node_id, sum(map(len, found.batches)))

    async def read(
        self,
        reads: Sequence[QueueRead] | ReadPlan,
        bytes_max: int,
        *,
        whole_first: bool = True,
        client: ForwardedClient | None = None,
    ) -> list[QueueSlice]:
        """`client`: who reads; None: this broker itself."""
        told = client_told(client)
        if isinstance(reads, Sequence):
            slices: list[QueueSlice] = []
            for first in range(0, len(reads), READS_MAX):
                slices += await self._read(reads[first : first + READS_MAX], bytes_max, told, whole_first=whole_first)
                size = sum(len(batch) for found in slices for batch in found.batches)
                bytes_max, whole_first = max(0, bytes_max - size), whole_first and not size
            return slices
        begun = reads.round
        while reads.round == begun and (wanted := reads.wanted(READS_MAX, bytes_max)).reads:
            for found in await self._read(wanted.reads, wanted.bytes_max, told, whole_first=wanted.whole_first):
                if reads.round == begun:
                    _settle(reads, found, misplaced=self._is_misplaced(found.queue_id))
        return []

    async def _read(
        self, reads: Sequence[QueueRead], bytes_max: int, client: ClientTold | None, *, whole_first: bool
    ) -> list[QueueSlice]:
        """One slice per read, from as many leaders as there are, which share the bytes. Reads that a node refuses
        because it does not lead are made once more."""
        found: dict[int, QueueSlice] = {}
        left = list(range(len(reads)))
        refused: dict[int, LeaderAt] = {}
        for _ in range(2):
            asked: dict[LeaderAt, list[int]] = {}
            for place in left:
                leader = await self._leader(reads[place].queue_id, refused)
                asked.setdefault(leader, []).append(place)
            share = bytes_max // max(len(asked), 1)
            answers = await asyncio.gather(
                *(
                    self._read_from(leader, ReadQueues([reads[place] for place in places], share, whole_first, client))
                    for leader, places in asked.items()
                )
            )
            left = []
            for (leader, places), answer in zip(asked.items(), answers, strict=True):
                for place, one in zip(places, answer, strict=True):
                    found[place] = one
                    if one.outcome is Outcome.NOT_LEADER:
                        left.append(place)
                        refused[self._group_of(one.queue_id)] = leader
            if not left:
                break
        return [found[place] for place in range(len(reads))]

    async def _leader(self, queue_id: int, refused: Mapping[int, LeaderAt]) -> LeaderAt:
        """The leader of a queue; node -1 where none is found in time."""
        group = self._group_of(queue_id)
        leader = self._leaders.now(group)
        if group in refused or leader.node_id == -1:
            try:
                return await self._leaders.moved(group, refused.get(group, leader))
            except NoLeader:
                return LeaderAt(-1, -1)
        return leader

    async def _read_from(self, leader: LeaderAt, request: ReadQueues) -> list[QueueSlice]:
        if leader.node_id == -1:
            return _none_of(request.reads)
        self._reads_asked += 1
        try:
            reply = await self._leaders.calls.call(leader.node_id, READ, request, timeout_seconds=CALL_SECONDS_MAX)
        except RpcError:
            return _none_of(request.reads)
        return slices_of(reply.message.slices, reply.buffers)

    def offsets(self, queue_ids: Sequence[int], *, lately: bool = False) -> PromptFuture[list[QueueOffsets | None]]:
        told = [self._cache.told_offsets(queue_id) for queue_id in queue_ids] if lately else []
        if not queue_ids or (told and None not in told):
            return PromptFuture.settled(told)
        answer: PromptFuture[list[QueueOffsets | None]] = PromptFuture()
        task = asyncio.get_running_loop().create_task(self._offsets(list(queue_ids)))

        def answered(task: asyncio.Task[list[QueueOffsets | None]]) -> None:
            if answer.done():
                return
            if task.cancelled():
                answer.cancel()
            elif (error := task.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        task.add_done_callback(answered)
        answer.add_done_callback(lambda answer: task.cancel() if answer.cancelled() else None)
        return answer

    async def _offsets(self, queue_ids: Sequence[int]) -> list[QueueOffsets | None]:
        """Raises `LinkError`."""
        found: dict[int, QueueOffsets | None] = {}
        for group, asked in by_write_group(queue_ids, self._group_of).items():
            for first in range(0, len(asked), QUEUES_MAX):
                part = asked[first : first + QUEUES_MAX]
                reply = await self._leaders.call(group, OFFSETS, AskOffsets(part))
                found.update(zip(part, reply.message.offsets, strict=True))
        return [found[queue_id] for queue_id in queue_ids]

    async def offset_for_timestamp(self, queue_id: int, timestamp: int) -> TimestampOffset | None:
        reply = await self._leaders.call(self._group_of(queue_id), TIMESTAMP, AskTimestamp(queue_id, timestamp))
        return reply.message.found

    def wait(self, queues: ReadPlan | Mapping[int, int], bytes_min: int, timeout_seconds: float) -> PromptFuture[None]:
        ends = queues if isinstance(queues, Mapping) else queues.ends()
        future: PromptFuture[None] = PromptFuture()
        if timeout_seconds <= 0 or any(self._cache.is_beyond(queue_id, end) for queue_id, end in ends.items()):
            future.set_result(None)
            return future
        followed = True
        for queue_id in ends:
            if queue_id in self._cache.tails:
                continue
            if len(self._cache.tails) >= FOLLOWED_MAX:
                followed = False
                break
            self._cache.begin(queue_id)
            if not self._followers.follow(queue_id):
                self._cache.drop(queue_id)
                followed = False
                break
        seconds = timeout_seconds if followed else min(timeout_seconds, POLL_SECONDS)
        timer = asyncio.get_running_loop().call_later(seconds, future.set_result, None)
        future.add_done_callback(lambda _: timer.cancel())
        if followed:
            self._cache.wait(TailWaiter(ends, bytes_min, future))
        return future

    def is_plain(self, queue_id: int, first: int, end: int) -> bool:
        """Whether this broker has been told all batches of a queue between two offsets, and none of them is part of a
        transaction."""
        return self._cache.is_plain(queue_id, first, end)

    # --- what is measured ---------------------------------------------------------------------------------

    def samples(self) -> Iterable[Sample]:
        yield Sample(
            "mainstem_link_backlog_bytes", "gauge", "Bytes of batches that no storage node has answered for",
            self._backlog_bytes,
        )  # fmt: skip
        yield Sample("mainstem_link_tails", "gauge", "Queues whose newest batches are kept", len(self._cache.tails))
        yield Sample("mainstem_link_tail_bytes", "gauge", "Bytes of these batches", self._cache.bytes)
        yield Sample(
            "mainstem_link_tail_reads_total", "counter", "Reads answered from newest batches kept", self._cache.hits
        )
        yield Sample("mainstem_link_reads_total", "counter", "Reads that storage nodes were asked", self._reads_asked)
        yield from self.takings.samples()


def by_write_group(queue_ids: Sequence[int], group_of: Callable[[int], int]) -> dict[int, list[int]]:
    by_group: dict[int, list[int]] = {}
    for queue_id in queue_ids:
        by_group.setdefault(group_of(queue_id), []).append(queue_id)
    return by_group


def _settle(plan: ReadPlan, found: QueueSlice, *, misplaced: bool) -> bool:
    """Settle a partition with what was read of it. Returns whether the reader gets batches. `misplaced`: its clients
    have another broker, which alone sends readers on."""
    sent_to = -1
    if misplaced:
        if not _may_stay(plan):
            found = found._replace(outcome=Outcome.NOT_LEADER, batches=[])
    elif plan.is_spread or plan.from_followers == SENT_ON:
        sent_to = plan.share_to
    plan.put(found, sent_to)
    return sent_to < 0 and bool(found.batches)


def _may_stay(plan: ReadPlan) -> bool:
    """Whether a reader whose queue has another broker may have been sent here by that one: any broker serves those of
    topics whose readers are spread, and those of its own rack."""
    return plan.is_spread or plan.from_followers == OF_ALL_TOPICS


def _none_of(reads: Sequence[QueueRead]) -> list[QueueSlice]:
    return [QueueSlice(read.queue_id, Outcome.NOT_LEADER, [], NO_OFFSETS) for read in reads]
