"""OffsetFetch for thousands of consumer groups leaves the event loop to others meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.harness import call, serving

from mainstem.broker.handlers import offset_fetch
from mainstem.broker.handlers.offset_fetch import GROUPS_AT_ONCE
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

GROUPS = 10 * GROUPS_AT_ONCE + 1


@pytest.mark.parametrize("version", [8, 10])
def test_groups_are_fetched_some_at_a_time_and_answered_in_their_order(version: int) -> None:
    names = [f"g{number}" for number in range(GROUPS)]
    request = OffsetFetchRequest(groups=tuple(OffsetFetchRequestGroup(group_id=name, topics=None) for name in names))

    async def story() -> None:
        async with serving() as node:
            before = node.broker.turns.taken
            response = await offset_fetch.handle(node.broker, request, call(version))
            assert [group.group_id for group in response.groups] == names
            assert node.broker.turns.taken - before >= GROUPS // GROUPS_AT_ONCE

    asyncio.run(story())
