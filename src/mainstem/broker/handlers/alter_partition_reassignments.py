"""AlterPartitionReassignments: a partition whose replicas shall be on other nodes moves to a write group that has its
replicas there. A partition that is there already is left alone; one that no write group suits is refused, with what
there is. The moves that a request begins go on by themselves: ListPartitionReassignments lists them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence

from mainstem.broker.admin.reassignments import (
    DONE,
    Judged,
    Judgement,
    Reassignments,
    WantedMove,
    WantedStay,
    least_loaded,
)
from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.model import MoveUnderWay
from mainstem.nameserver.errors import InvalidPlacement, MetadataUnavailable
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

PARTITIONS_PER_TURN = 500
"""Partitions judged within one turn of the event loop: about a millisecond."""

GROUPS_MADE_MAX = 8
"""Write groups that are made for one request: each is a change of the metadata that every node hears of."""

MOVES_AT_ONCE_MAX = 32
"""Moves that one request has the metadata leader write down at a time: each is small, and they share a sync."""


async def handle(
    broker: Broker, request: AlterPartitionReassignmentsRequest, call: RequestContext
) -> AlterPartitionReassignmentsResponse:
    try:
        responses = await _answered(broker, request)
    except MainstemError as error:
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_code=error_of_refusal(error),
            error_message=str(error),
        )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE,
        responses=responses,
    )


async def _answered(
    broker: Broker, request: AlterPartitionReassignmentsRequest
) -> tuple[ReassignableTopicResponse, ...]:
    """Raises where nobody can judge, or the metadata takes no changes: nothing is wrong with the request then, and
    what it has begun it finds done when it is repeated."""
    replica_moves = await _replica_moves(broker, request)
    reassignments, found = await _all_judged(broker, request, replica_moves, {})
    if reassignments.lacking:
        not_made = await _made(broker, reassignments.lacking)
        reassignments, found = await _all_judged(broker, request, replica_moves, not_made)
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    stays = {each.slot for of_topic in found for each in of_topic if isinstance(each, WantedStay)}
    begun = await _begun(broker, list(reassignments.wanted.values()), reassignments.asked)
    decided = {**await _taken_back(broker, stays), **begun}
    told: set[Judgement] = set()
    responses = []
    for topic, of_topic in zip(request.topics, found, strict=True):
        await pace.step()
        answers = []
        for asked, each in zip(topic.partitions, of_topic, strict=True):
            await pace.step()
            judgement = each if isinstance(each, Judgement) else decided[each.slot]
            answers.append(
                ReassignablePartitionResponse(
                    partition_index=asked.partition_index,
                    error_code=judgement.error,
                    error_message=None if judgement in told else judgement.message,
                )
            )
            told.add(judgement)  # the same reason is told once: there can be very many partitions
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=tuple(answers)))
    return tuple(responses)


async def _all_judged(
    broker: Broker,
    request: AlterPartitionReassignmentsRequest,
    replica_moves: Sequence[MoveUnderWay],
    not_made: Mapping[tuple[int, ...], str],
) -> tuple[Reassignments, list[list[Judged]]]:
    """The judgements of all partitions, topic by topic."""
    reassignments = Reassignments(
        broker, replica_moves, may_change_factor=request.allow_replication_factor_change, not_made=not_made
    )
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    found: list[list[Judged]] = []
    for topic in request.topics:
        await pace.step()
        of_topic = []
        for asked in topic.partitions:
            await pace.step()
            of_topic.append(reassignments.judged(topic.name, asked.partition_index, asked.replicas))
        found.append(of_topic)
    return reassignments, found


async def _made(broker: Broker, lacking: Iterable[tuple[int, ...]]) -> Mapping[tuple[int, ...], str]:
    """Have write groups made on these nodes. Returns why not, where none could be."""
    not_made = {}
    for number, nodes in enumerate(lacking):
        if number >= GROUPS_MADE_MAX:
            not_made[nodes] = f"one request has {GROUPS_MADE_MAX} made at most: ask again"
            continue
        error = await _outcome(broker.queue_moves.make_group(nodes))
        if error is not None:
            _judgement(error)  # raises where the metadata takes no changes
            not_made[nodes] = str(error)
    return not_made


async def _replica_moves(broker: Broker, request: AlterPartitionReassignmentsRequest) -> Sequence[MoveUnderWay]:
    """The moves of write groups' replicas, if the request cancels anything."""
    cancels = any(partition.replicas is None for topic in request.topics for partition in topic.partitions)
    return await broker.standing.moves() if broker.standing is not None and cancels else ()


async def _taken_back(broker: Broker, slots: Iterable[int]) -> Mapping[int, Judgement]:
    """Have these slots stay where they are. Returns what became of each."""
    return {slot: _judgement(await _outcome(broker.queue_moves.take_back(slot))) for slot in slots}


async def _begun(
    broker: Broker, wanted: Sequence[WantedMove], asked: Mapping[int, Sequence[tuple[str, int]]]
) -> Mapping[int, Judgement]:
    """Begin these moves; `asked`: by slot, the partitions of which the request says where they are to be. Returns what
    became of each, by slot."""
    if any(len(move.groups) > 1 for move in wanted):
        groups = least_loaded(await broker.queue_moves.burdens(), wanted)
    else:
        groups = [move.groups[0] for move in wanted]
    moves = list(zip(wanted, groups, strict=True))
    begun: dict[int, Judgement] = {}
    for start in range(0, len(moves), MOVES_AT_ONCE_MAX):
        some = moves[start : start + MOVES_AT_ONCE_MAX]
        async with asyncio.TaskGroup() as tasks:
            beginning = [
                tasks.create_task(
                    _outcome(broker.queue_moves.move(move.topic, move.partition, group, asked[move.slot]))
                )
                for move, group in some
            ]
        for (move, _), task in zip(some, beginning, strict=True):
            begun[move.slot] = _judgement(task.result())
    return begun


async def _outcome(change: Awaitable[None]) -> MainstemError | None:
    """Why a change of the metadata was not made, if it was not."""
    try:
        await change
    except MainstemError as error:
        return error
    return None


def _judgement(refusal: MainstemError | None) -> Judgement:
    """Raises `MetadataUnavailable`, which is nothing that a partition can do anything about."""
    if refusal is None:
        return DONE
    if isinstance(refusal, MetadataUnavailable):
        raise refusal
    if isinstance(refusal, InvalidPlacement):
        return Judgement(ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(refusal))
    return Judgement(error_of_refusal(refusal), str(refusal))
