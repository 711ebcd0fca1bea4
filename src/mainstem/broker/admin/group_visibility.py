"""Clients are shown groups, and members may join them, as far as they may describe the topics that these read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import DescribedConsumerGroup
from mainstem.protocol.messages.share_groups import DescribedShareGroup
from mainstem.protocol.messages.streams_groups import DescribedStreamsGroup
from mainstem.security.acls.acl import Operation, ResourceKind

GROUPS_PER_STEP = 100
"""Groups described in one turn of the event loop."""

NAMES_PER_TURN = 500
"""Names judged within one turn of the event loop: about a millisecond."""

HIDDEN = "members of the group read topics that the client may not describe"

D = TypeVar("D", DescribedConsumerGroup, DescribedShareGroup, DescribedStreamsGroup)


async def shown_groups(
    broker: Broker,
    call: RequestContext,
    group_ids: Sequence[str],
    *,
    describe: Callable[[Sequence[str]], Awaitable[Iterable[D]]],
    topics_of: Callable[[D], Iterable[str]],
    hidden: Callable[[str, ErrorCode, str], D],
    with_operations: bool,
) -> tuple[D, ...]:
    """Descriptions of groups, some at a time. One that reads a topic which the client may not describe is `hidden`,
    for a reason; the others tell what the client may do with them, if it asked."""
    shown: list[D] = []
    for first in range(0, len(group_ids), GROUPS_PER_STEP):
        if first:
            await broker.turns.take()
        found = await describe(group_ids[first : first + GROUPS_PER_STEP])
        verdicts = broker.verdicts(call.session)
        for group in found:
            names = set(topics_of(group))
            if not all(verdicts.allows(Operation.DESCRIBE, ResourceKind.TOPIC, name) for name in names):
                shown.append(hidden(group.group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, HIDDEN))
            elif with_operations and group.error_code == ErrorCode.NONE:
                operations = verdicts.operations(ResourceKind.GROUP, group.group_id)
                shown.append(replace(group, authorized_operations=operations))
            else:
                shown.append(group)
    return tuple(shown)


async def may_describe_all(broker: Broker, call: RequestContext, topic_names: Iterable[str]) -> bool:
    """Whether a client may describe all of these topics, judged some at a time."""
    pace = broker.turns.pace(NAMES_PER_TURN)
    for name in topic_names:
        await pace.step()
        if not broker.verdicts(call.session).allows(Operation.DESCRIBE, ResourceKind.TOPIC, name):
            return False
    return True
