"""ElectLeaders: the leader of a write group is asked to hand over to the node that shall lead it.

All queues of a write group have one leader, so whoever names one of them has all of them led elsewhere. Nodes hand over
by themselves as well, some seconds later and one write group at a time. An unclean election, of a replica that may lack
acknowledged messages, is refused: a majority elects, and always one that has them.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from mainstem.broker.broker import NO_LEADER, Broker
from mainstem.broker.partitions import (
    TOPIC_COSTS_PARTITIONS,
    ExistingPartitions,
    existing_partitions,
    in_write_groups,
)
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.ports import ClusterStanding
from mainstem.protocol import codec
from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.elect_leaders import (
    PREFERRED,
    UNCLEAN,
    ElectedPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReplicaElectionResult,
)

PARTITIONS_PER_TURN = 5_000
"""Partitions looked at within one turn of the event loop: about a millisecond. A topic counts as some more."""

ELECTIONS_AT_ONCE_MAX = 8
"""Write groups that are handed over at a time by one request: each takes no batches for some milliseconds."""

HAND_OVER_SECONDS_MAX = 5.0
"""Several election timeouts: the old leader has given up by then, and leads on."""

LOOK_SECONDS = 0.02
"""Between two looks at who leads."""

UNCLEAN_REFUSED = (
    "unclean elections are refused: the write group elects a leader when a majority of its replicas is back; if that "
    "is lost for good, see mainstem cluster recover"
)

_INDEX = struct.Struct(">i")


class Election(NamedTuple):
    """The outcome for one write group."""

    error: ErrorCode
    message: str | None = None


DONE = Election(ErrorCode.NONE)
NOT_NEEDED = Election(ErrorCode.ELECTION_NOT_NEEDED)
UNFINISHED = Election(ErrorCode.REQUEST_TIMED_OUT, "the write group has not changed its leader in time")


async def handle(broker: Broker, request: ElectLeadersRequest, call: RequestContext) -> ElectLeadersResponse:
    if request.election_type not in (PREFERRED, UNCLEAN):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    named = None
    if request.topic_partitions is not None:
        named = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    asked = await existing_partitions(broker, named, PARTITIONS_PER_TURN)
    groups: set[int] = set()
    async for _, _, of_indexes in in_write_groups(broker, asked, PARTITIONS_PER_TURN):
        groups.update(of_indexes.tolist())
    if request.election_type == UNCLEAN:
        elections = {group: _unclean(broker, group) for group in groups}
    else:
        elections = await _elections(broker, groups, max(0, request.timeout_ms) / 1000)
    results = _Results(call.version)
    if named is None:
        elections = {group: it for group, it in elections.items() if it.error != ErrorCode.ELECTION_NOT_NEEDED}
    await results.add(broker, asked, elections)
    await results.add_unknown(broker, named or (), asked)
    return ElectLeadersResponse(error_code=ErrorCode.NONE, replica_election_results=results.encoded())


def _unclean(broker: Broker, group: int) -> Election:
    if broker.leadership.replicas(group).leader != NO_LEADER:
        return NOT_NEEDED
    return Election(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, UNCLEAN_REFUSED)


async def _elections(broker: Broker, groups: Collection[int], seconds: float) -> dict[int, Election]:
    """Per write group the outcome of the election of its preferred leader."""
    standing = broker.standing
    if standing is None:
        return dict.fromkeys(groups, NOT_NEEDED)
    elections = {group: _needed(broker, standing, group) for group in sorted(groups)}
    waiting = iter([group for group, election in elections.items() if election is UNFINISHED])

    async def hand_over(standing: ClusterStanding) -> None:
        for group in waiting:
            elections[group] = await _handed_over(broker, standing, group)

    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
            for _ in range(ELECTIONS_AT_ONCE_MAX):
                tasks.create_task(hand_over(standing))
    except TimeoutError:
        pass  # the others are unfinished
    return elections


def _needed(broker: Broker, standing: ClusterStanding, group: int) -> Election:
    """`UNFINISHED`: the write group is to be handed over."""
    leader = broker.leadership.replicas(group).leader
    placed = standing.placed(group)
    if leader == NO_LEADER or not placed:
        return Election(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"write group {group} has no leader now that could hand over"
        )
    return NOT_NEEDED if leader == placed[0] else UNFINISHED


async def _handed_over(broker: Broker, standing: ClusterStanding, group: int) -> Election:
    preferred = standing.placed(group)[0]
    try:
        await standing.lead(group, preferred)
    except MainstemError as error:
        return Election(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, str(error))
    until = broker.clock.monotonic() + HAND_OVER_SECONDS_MAX
    while broker.leadership.replicas(group).leader != preferred:
        if broker.clock.monotonic() >= until:
            return Election(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"node {preferred} did not take over write group {group}; its disk may be full",
            )
        await asyncio.sleep(LOOK_SECONDS)
    return DONE


class _Results:
    """The results of an answer, encoded topic by topic. Partitions differ by their write group and their number, which
    comes first. Only the first partition of each write group has the message: there can be very many."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._count = 0
        self._buffers: list[bytes] = []

    def encoded(self) -> EncodedArray:
        return EncodedArray(self._count, self._buffers)

    async def add(self, broker: Broker, asked: ExistingPartitions, elections: Mapping[int, Election]) -> None:
        """The results of those partitions whose write group is among these."""
        firsts = {group: self._rest(election) for group, election in elections.items()}
        rests = {group: self._rest(Election(election.error)) for group, election in elections.items()}
        rows: list[bytes] = []
        name = ""
        async for topic, indexes, groups in in_write_groups(broker, asked, PARTITIONS_PER_TURN):
            if topic.name != name:
                self._topic(name, rows)
                name, rows = topic.name, []
            for index, group in zip(indexes.tolist(), groups.tolist(), strict=True):
                if group in rests:
                    rows += (_INDEX.pack(index), firsts.pop(group, rests[group]))
        self._topic(name, rows)

    async def add_unknown(
        self, broker: Broker, named: Iterable[tuple[str, Iterable[int]]], asked: ExistingPartitions
    ) -> None:
        """The results of those partitions that were named and do not exist."""
        known = {topic.name: topic.partitions for topic, _ in asked}
        rest = self._rest(Election(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        pace = broker.turns.pace(PARTITIONS_PER_TURN)
        for name, indexes in named:
            rows: list[bytes] = []
            for index in indexes:
                await pace.step()
                if not 0 <= index < known.get(name, 0):
                    rows += (_INDEX.pack(index), rest)
            await pace.step(TOPIC_COSTS_PARTITIONS)
            self._topic(name, rows)

    def _rest(self, election: Election) -> bytes:
        one = ElectedPartitionResult(partition_id=0, error_code=election.error, error_message=election.message)
        encoded = codec.encode_elements(ElectLeadersResponse, self._version, ElectedPartitionResult, [one])
        return b"".join(encoded)[_INDEX.size :]

    def _topic(self, name: str, rows: list[bytes]) -> None:
        if rows:
            self._count += 1
            one = ReplicaElectionResult(topic=name, partition_result=EncodedArray(len(rows) // 2, (b"".join(rows),)))
            encoded = codec.encode_elements(ElectLeadersResponse, self._version, ReplicaElectionResult, [one])
            self._buffers += map(bytes, encoded)
