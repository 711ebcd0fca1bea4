"""Share groups over the fakes."""

from __future__ import annotations

from mainstem.broker.machines.serving_node import ServingNode
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.share_groups.served_states import ServedStates, state_topic
from mainstem.broker.share_groups.share_reads import ShareReads, Wakeups
from mainstem.broker.share_groups.share_states import ShareStates
from mainstem.broker.share_groups.share_statistics import ShareCounts


def share_groups_of(node: ServingNode, config: ShareGroupsConfig | None = None) -> ShareReads:
    config, wakeups, counts = config or ShareGroupsConfig(), Wakeups(), ShareCounts()
    served = ServedStates(node, config, state_topic(config, 1, 1), available=wakeups.tell, counts=counts)
    return ShareReads(config, served, wakeups, counts, ShareStates(node, served))
