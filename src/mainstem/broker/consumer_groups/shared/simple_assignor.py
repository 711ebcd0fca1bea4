"""The assignor of share groups: every partition of a topic has a member that subscribes to it, and every such member a
partition, as evenly as that goes; several members read one partition where there are more members than partitions."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from mainstem.broker.consumer_groups.epochs.assigned_partitions import Partitions, Sizes

ASSIGNOR = "simple"


def assign_simply(subscribed: Mapping[str, frozenset[UUID]], sizes: Sizes) -> dict[str, Partitions]:
    """Members by id, with the topics to which each subscribes, and the sizes of these; the answer names every member.
    Topics begin with different members, so that small ones do not all go to the first."""
    found: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in subscribed}
    turn = 0
    for topic_id in sorted(sizes):
        members = sorted(member_id for member_id, topics in subscribed.items() if topic_id in topics)
        size = sizes[topic_id]
        if not members or not size:
            continue
        for pair in range(max(len(members), size)):
            member_id = members[(turn + pair) % len(members)]
            found[member_id].setdefault(topic_id, set()).add(pair % size)
        turn += size
    return {
        member_id: {topic_id: frozenset(indexes) for topic_id, indexes in topics.items()}
        for member_id, topics in found.items()
    }
