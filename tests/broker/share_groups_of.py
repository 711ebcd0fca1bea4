"""Share groups over the fakes."""

from __future__ import annotations

from mainstem.broker.queue_routing import QueueRouting
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.share_groups.served_states import ServedStates, state_topic
from mainstem.broker.share_groups.share_reads import ShareReads, Wakeups
from mainstem.broker.share_groups.share_statistics import ShareCounts
from mainstem.ports import Clock, Cluster, MessageStore, Metadata, MetadataAdmin, QueueAdmin, QueueLeadership


def share_groups_of(
    metadata: Metadata,
    metadata_admin: MetadataAdmin,
    cluster: Cluster,
    leadership: QueueLeadership,
    store: MessageStore,
    queue_admin: QueueAdmin,
    clock: Clock,
    config: ShareGroupsConfig | None = None,
) -> ShareReads:
    config, wakeups, counts = config or ShareGroupsConfig(), Wakeups(), ShareCounts()
    served = ServedStates(
        node_id=1,
        config=config,
        internal_topic=state_topic(config, 1, 1),
        metadata=metadata,
        metadata_admin=metadata_admin,
        leadership=leadership,
        routing=QueueRouting(1, cluster, leadership, apart=False),
        store=store,
        queue_admin=queue_admin,
        clock=clock,
        available=wakeups.tell,
        counts=counts,
    )
    return ShareReads(config, served, wakeups, counts)
