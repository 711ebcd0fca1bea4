"""The storage of other nodes, for a broker without its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from mainstem.broker.queue_routing import QueueRouting
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import Event, WriteGroupsAdded
from mainstem.node.broker_role.compute import BrokersStore
from mainstem.node.roles_setup import RolesSetup
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.placement import Placement
from mainstem.storage.queues.cluster_queue_admin import ClusterQueueAdmin
from mainstem.storage_link.client_store import RemoteClientStore
from mainstem.storage_link.leader_calls import LeaderCalls
from mainstem.storage_link.leader_transactions import LeaderCommittedReads, LeaderTransactionMarkers
from mainstem.storage_link.remote_leadership import RemoteLeadership
from mainstem.storage_link.remote_message_store import RemoteMessageStore
from mainstem.storage_link.remote_queues import RemoteQueueAdmin

LEADERS_SECONDS = 0.1
"""Between two looks at who leads: some microseconds."""

CLOCK_SECONDS = 1.0
"""Between two looks at what time the metadata's voters agree on."""


def linked_storage(setup: RolesSetup, nameserver: Nameserver) -> BrokersStore:
    """The store of a broker whose write groups are all led by other nodes."""
    others, lookups, clock = nameserver.others, nameserver.lookups, setup.ports.clock
    assert others is not None, "a node alone has storage"
    calls = others.record_calls if others.record_calls is not None else others.calls
    leaders = LeaderCalls(calls, lookups.heard)
    placement = Placement(lookups.slots())
    placement.grow(lookups.slots(), lookups.write_groups())
    leadership = RemoteLeadership(placement, leaders, lookups.placements)
    routing = QueueRouting(setup.config.node_id, lookups, leadership, apart=True)
    messages = RemoteMessageStore(
        placement.groups, placement.group_of, leaders, setup.ports.randomness(), routing.is_misplaced
    )
    setup.stack.push_async_callback(messages.close)
    setup.background.begin(messages.run, "tails of queues")
    queues = RemoteQueueAdmin(placement.groups, placement.group_of, leaders, nameserver.waits.followed)
    queue_admin = ClusterQueueAdmin(
        queues,
        setup.config.node_id,
        placement.groups,
        leadership.leader,
        others.calls,
        clock,
        nameserver.waits.deleted,
    )
    agreed = AgreedClock(clock, lambda: lookups.quorum_times() or [clock.now_ms()])

    async def look_at_clocks() -> None:
        while True:
            agreed.now()
            await asyncio.sleep(CLOCK_SECONDS)

    setup.background.begin(look_at_clocks, "agreed clock")
    news = LeaderNews(leaders, placement.groups)
    setup.background.begin(news.run, "leaders of write groups")

    def grow(event: Event) -> None:
        if isinstance(event, WriteGroupsAdded):
            groups = len(event.placements)
            placement.grow(event.slots, groups)
            for part in (messages, queues, queue_admin, news):
                part.grow(groups)

    nameserver.subscribe(grow)
    return BrokersStore(
        messages,
        leadership,
        routing,
        queue_admin,
        LeaderTransactionMarkers(placement.group_of, leaders),
        LeaderCommittedReads(placement.group_of, leaders, messages.is_plain),
        agreed,
        news.subscribe,
        for_client=partial(RemoteClientStore, messages),
    )


class LeaderNews:
    """Tells of write groups that have another leader, which knows no owner of any log: what is coordinated here is
    loaded anew."""

    def __init__(self, leaders: LeaderCalls, groups: int) -> None:
        self._leaders = leaders
        self._known = {group: leaders.now(group) for group in range(groups)}
        self._listeners: list[Callable[[int, bool], None]] = []

    def grow(self, groups: int) -> None:
        """From now on there are so many write groups."""
        for group in range(len(self._known), groups):
            self._known[group] = self._leaders.now(group)

    def subscribe(self, listener: Callable[[int, bool], None]) -> None:
        self._listeners.append(listener)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LEADERS_SECONDS)
            for group, known in list(self._known.items()):
                leader = self._leaders.now(group)
                if leader.node_id == -1 or leader == known:
                    continue
                self._known[group] = leader
                for listener in self._listeners:
                    listener(group, True)
