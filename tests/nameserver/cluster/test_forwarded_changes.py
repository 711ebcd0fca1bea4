"""Changes that nodes want for their clients: the leader hears for whom, and refuses what was judged by old rules."""

from __future__ import annotations

import pytest
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.acted_for import acting_for
from mainstem.model import ForwardedClient
from mainstem.nameserver.errors import MetadataUnavailable, TopicExists

AN, BO = ForwardedClient("User:an", "10.0.0.1", 7), ForwardedClient("User:bo", "10.0.0.2", 3)


class Clients:
    """`ForwardedClients` that refuse what was judged before 5."""

    def __init__(self) -> None:
        self.changes: list[tuple[ForwardedClient, int, str, str | None]] = []

    def refusal(self, client: ForwardedClient) -> str | None:
        return "judged by old rules" if client.judged_at < 5 else None

    def brought(self, client: ForwardedClient, size_bytes: int) -> float:
        raise AssertionError("metadata has no batches")

    def took(self, client: ForwardedClient, size_bytes: int) -> None:
        raise AssertionError("metadata has no batches")

    def changed(self, client: ForwardedClient, node_id: int, what: str, refusal: str | None) -> None:
        self.changes.append((client, node_id, what, refusal))


def test_the_leader_hears_for_whom_other_nodes_want_changes() -> None:
    async def scenario() -> None:
        cluster = Nameservers(91)
        await cluster.start_all()
        leader = await cluster.elected()
        clients = Clients()
        for nameserver in cluster.running.values():
            nameserver.ask_about(clients)
        asking = next(node_id for node_id in cluster.running if node_id != leader)
        admin = cluster.running[asking].administration
        with acting_for(AN):
            await admin.create_topic("t", 1, 3, {})
            with pytest.raises(TopicExists):
                await admin.create_topic("t", 1, 3, {})
        with acting_for(BO), pytest.raises(MetadataUnavailable, match="judged by old rules"):
            await admin.create_topic("u", 1, 3, {})
        await admin.create_topic("own", 1, 3, {})
        with acting_for(AN):
            await cluster.running[leader].administration.create_topic("leaders", 1, 3, {})
        assert {topic.name for topic in cluster.running[leader].lookups.topics()} == {"t", "own", "leaders"}
        told = [(client.principal, node_id, refusal) for client, node_id, _, refusal in clients.changes]
        assert told[0] == ("User:an", asking, None)
        assert told[-1] == ("User:bo", asking, "judged by old rules")
        assert {what for _, _, what, _ in clients.changes} == {"Topics"}
        await cluster.close()

    simulate(scenario())
