"""Offsets of many groups: committed, and asked for until each group gives its own again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bench.errors import BenchError
from bench.groups.administration import coordinators, known_coordinators
from bench.groups.client_connection import ClientConnection
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

OFFSET_COMMIT, OFFSET_FETCH = 9, 9
CONNECTIONS = 32
ANSWER_SECONDS_MAX = 120.0
LOOK_SECONDS = 0.005
COMMITTED = 1_000
"""The offset of partition 0; others follow."""
NOT_YET = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
}  # fmt: skip

Work = Callable[[ClientConnection, str], Awaitable[None]]


async def each(places: Mapping[str, str], work: Work) -> None:
    """Work on groups, each at its place, over some connections to every place. Raises what `work` raises, in an
    group of exceptions."""
    by_address: dict[str, list[str]] = {}
    for group_id, address in places.items():
        by_address.setdefault(address, []).append(group_id)

    async def worker(address: str, left: Iterator[str]) -> None:
        connection = await ClientConnection.to(address)
        try:
            for group_id in left:
                await work(connection, group_id)
        finally:
            connection.close()

    async with asyncio.TaskGroup() as tasks:
        for address, group_ids in by_address.items():
            left = iter(group_ids)
            for _ in range(min(CONNECTIONS, len(group_ids))):
                tasks.create_task(worker(address, left))


async def committed(address: str, group_ids: Sequence[str], topic: str, partitions: Sequence[int]) -> float:
    """Seconds in which each group has committed an offset of each partition. Raises BenchError, in a group."""
    places = await coordinators(address, group_ids)
    rows = tuple(
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=COMMITTED + index, committed_leader_epoch=0, committed_metadata=""
        )
        for index in partitions
    )

    async def commit(connection: ClientConnection, group_id: str) -> None:
        topics = (OffsetCommitRequestTopic(name=topic, partitions=rows),)
        request = OffsetCommitRequest(group_id=group_id, topics=topics)
        while True:
            answer = await connection.ask(request, OFFSET_COMMIT)
            codes = {ErrorCode(one.error_code) for topic in answer.topics for one in topic.partitions}
            if not codes & NOT_YET:
                break
            await asyncio.sleep(LOOK_SECONDS)
        if codes != {ErrorCode.NONE}:
            raise BenchError(f"group {group_id} may not commit: {codes}")

    begun = time.monotonic()
    await each(places, commit)
    return time.monotonic() - begun


class Back(NamedTuple):
    """Seconds from a moment until groups answer again."""

    first: float
    all: float


async def answered(asked: Sequence[str], group_ids: Sequence[str], topic: str, since: float) -> Back:
    """Asks the groups for their offsets, at the coordinators that the nodes `asked` name, until each has given its own.
    Raises BenchError, in a group, when one gives another offset, or none in time."""
    left = set(group_ids)
    moments: list[float] = []

    async def ask(connection: ClientConnection, group_id: str) -> None:
        group = OffsetFetchRequestGroup(
            group_id=group_id, topics=(OffsetFetchRequestTopics(name=topic, partition_indexes=(0,)),)
        )
        (answer,) = (await connection.ask(OffsetFetchRequest(groups=(group,)), OFFSET_FETCH)).groups
        code = ErrorCode(answer.error_code)
        if code in NOT_YET:
            return
        offset = answer.topics[0].partitions[0].committed_offset if code is ErrorCode.NONE else code.name
        if offset != COMMITTED:
            raise BenchError(f"group {group_id} gives {offset} in place of offset {COMMITTED}")
        moments.append(time.monotonic())
        left.discard(group_id)

    async def ask_at(address: str, some: Sequence[str]) -> None:
        try:
            await each(dict.fromkeys(some, address), ask)
        except* OSError:
            pass  # a node that is dead, or does not listen yet

    while left:
        if time.monotonic() > since + ANSWER_SECONDS_MAX:
            raise BenchError(f"{len(left)} of {len(group_ids)} groups gave no offset in {ANSWER_SECONDS_MAX:.0f} s")
        for node in asked:
            places = await known_coordinators(node, sorted(left))
            by_address: dict[str, list[str]] = {}
            for group_id, address in places.items():
                by_address.setdefault(address, []).append(group_id)
            await asyncio.gather(*(ask_at(address, some) for address, some in by_address.items()))
        await asyncio.sleep(LOOK_SECONDS)
    return Back(min(moments) - since, max(moments) - since)
