"""Makes topics for groups, and waits for coordinators that answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from uuid import UUID

from bench.errors import BenchError
from bench.groups.client_connection import ClientConnection
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import KEY_TYPE_GROUP, FindCoordinatorRequest
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

FIND_COORDINATOR, CREATE_TOPICS, METADATA = 4, 7, 12
ANSWER_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.02
KEYS_AT_ONCE = 1_000
CREATE_TIMEOUT_MS = 60_000


async def new_topic(address: str, name: str, partitions: int, replication_factor: int = 1) -> UUID:
    """Make a topic; returns its id once all partitions have leaders. Raises BenchError."""
    connection = await ClientConnection.to(address)
    try:
        wanted = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replication_factor, assignments=(), configs=()
        )
        request = CreateTopicsRequest(topics=(wanted,), timeout_ms=CREATE_TIMEOUT_MS)
        (made,) = (await connection.ask(request, CREATE_TOPICS)).topics
        if made.error_code:
            raise BenchError(f"topic {name} is not made: {ErrorCode(made.error_code).name}")
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        asked = MetadataRequest(topics=(MetadataRequestTopic(name=name),))
        while time.monotonic() < deadline:
            (topic,) = (await connection.ask(asked, METADATA)).topics
            if len(topic.partitions) == partitions and not any(one.error_code for one in topic.partitions):
                found: UUID = made.topic_id
                return found
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        connection.close()
    raise BenchError(f"topic {name} had no leaders after {ANSWER_SECONDS_MAX:.0f} s")


async def coordinators(address: str, group_ids: Sequence[str]) -> Mapping[str, str]:
    """The address of each group's coordinator, once there is one for all: the first such question makes a node make its
    internal topic. Raises BenchError."""
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    found: dict[str, str] = {}
    while left := [group_id for group_id in group_ids if group_id not in found]:
        found.update(await known_coordinators(address, left))
        if time.monotonic() > deadline:
            raise BenchError(f"{len(left)} groups had no coordinator after {ANSWER_SECONDS_MAX:.0f} s")
        await asyncio.sleep(LOOK_SECONDS)
    return found


async def known_coordinators(address: str, group_ids: Sequence[str]) -> Mapping[str, str]:
    """The addresses of the coordinators that a node can name now. Raises OSError."""
    connection = await ClientConnection.to(address)
    found: dict[str, str] = {}
    try:
        for first in range(0, len(group_ids), KEYS_AT_ONCE):
            keys = tuple(group_ids[first : first + KEYS_AT_ONCE])
            request = FindCoordinatorRequest(key_type=KEY_TYPE_GROUP, coordinator_keys=keys)
            answers = (await connection.ask(request, FIND_COORDINATOR)).coordinators
            found.update({it.key: f"{it.host}:{it.port}" for it in answers if not it.error_code})
    finally:
        connection.close()
    return found
