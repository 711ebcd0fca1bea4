"""The settings of consumer groups. Python names carry units; Kafka's names stand beside them."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError

UPGRADING_POLICIES = ("upgrade", "bidirectional")
DOWNGRADING_POLICIES = ("downgrade", "bidirectional")
STANDBYS_MAX = 2
MIGRATION_POLICIES = ("disabled", "upgrade", "downgrade", "bidirectional")


class ConsumerGroupsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds, timeouts and sizes of one node's consumer group coordinator."""

    session_timeout_ms_min: int = 6_000
    """`group.min.session.timeout.ms`"""
    session_timeout_ms_max: int = 1_800_000
    """`group.max.session.timeout.ms`"""
    consumer_session_timeout_ms: int = 45_000
    """`group.consumer.session.timeout.ms`: of members whose partitions the coordinator assigns."""
    consumer_heartbeat_interval_ms: int = 5_000
    """`group.consumer.heartbeat.interval.ms`: how often these members are told to send a heartbeat."""
    consumer_assignment_interval_ms: int = 1_000
    """`group.consumer.assignment.interval.ms`: partitions of a consumer group of a hundred members or more are assigned
    anew no more often."""
    streams_session_timeout_ms: int = 45_000
    """`group.streams.session.timeout.ms`: of members of streams groups."""
    streams_heartbeat_interval_ms: int = 5_000
    """`group.streams.heartbeat.interval.ms`: how often these members are told to send a heartbeat."""
    streams_num_standby_replicas: int = 0
    """`group.streams.num.standby.replicas`: how many members follow each task with state, ready to take it over; two
    at most, as in Kafka."""
    streams_initial_rebalance_delay_ms: int = 3_000
    """`group.streams.initial.rebalance.delay.ms`: how long a streams group without members waits for more of them
    after the first."""
    streams_assignment_interval_ms: int = 1_000
    """`group.streams.assignment.interval.ms`: tasks of a streams group are assigned anew no more often."""
    share_session_timeout_ms: int = 45_000
    """`group.share.session.timeout.ms`: of members of share groups."""
    share_heartbeat_interval_ms: int = 5_000
    """`group.share.heartbeat.interval.ms`: how often these members are told to send a heartbeat."""
    migration_policy: str = "bidirectional"
    """`group.consumer.migration.policy`: whether a group may change its protocol while it has members: `upgrade` from
    classic, `downgrade` to classic, `bidirectional` or `disabled`."""
    rebalance_delay_ms: int = 3_000
    """`group.initial.rebalance.delay.ms`: how long an empty consumer group waits for more members after the
    first."""
    group_size_max: int = 10_000
    """`group.max.size`: members of one consumer group, including those that were told to come back with an
    id. Kafka sets no bound; at this many, one rebalance already answers the leader with megabytes."""
    groups_max: int = 100_000
    """Consumer groups in one partition of the internal topic. Each costs about 2 KB of memory before its
    offsets; clients choose the group ids, so their number needs a bound."""
    group_metadata_bytes_max: int = 1_000_000
    """The largest group metadata record; the same bound that Kafka's default `max.message.bytes` gives."""
    members_bytes_max: int = 256 * 1024 * 1024
    """Bytes that the members of all consumer groups of the node may hold: subscriptions, assignments, about a
    KB besides; one address may hold half of it. Two hundred thousand consumers of a few topics each."""
    rebalance_timeout_ms_max: int = 1_800_000
    """A rebalance waits no longer for its members, whatever timeout they ask for: as long as a session may
    last."""
    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait in a join before it is dropped. Its client may have gone away, which
    nothing else would show, since the client has not heard its member id yet."""

    offset_metadata_bytes_max: int = 4_096
    """`offset.metadata.max.bytes`"""
    pending_offsets_max: int = 100_000
    """Offsets in one partition of the internal topic that open transactions commit; each costs about half a KB."""
    group_offsets_max: int = 1_000_000
    """Offsets that one group may have committed: as many as a node has queues at most. Each costs about 0.4 KB."""
    offsets_max: int = 4_000_000
    """Offsets that all groups of the node may have committed; about 1.6 GB. Clients choose the ids of groups, and each
    may read every partition there is."""
    offsets_retention_minutes: int = 10_080
    """`offsets.retention.minutes`"""
    offsets_retention_check_interval_ms: int = 600_000
    """`offsets.retention.check.interval.ms`"""

    offsets_topic_partitions: int = 16
    """`offsets.topic.num.partitions`. Kafka takes 50, to spread coordinators over many brokers; here a
    partition costs a task and a load at start, and 16 is the default number of write groups."""
    offsets_topic_replication_factor: int = 1
    """`offsets.topic.replication.factor`"""
    offsets_commit_timeout_ms: int = 5_000
    """`offsets.commit.timeout.ms`: how long an append may be refused as busy before it counts as failed."""

    lag_interval_ms: int = 30_000
    """Between two looks at the lag of all groups for the metrics; 0: none is made. A look takes at most a fiftieth of
    the time, so that one at a million offsets lasts some minutes."""
    lag_series_max: int = 20
    """Groups, and as many partitions, whose lag has metrics of its own: those with the greatest. Others are in the
    totals."""
    rebalance_loop_generations: int = 10
    """A group has a rebalance loop when it has come to so many agreements…"""
    rebalance_loop_ms: int = 300_000
    """…within this time, without growing. A group whose members take longer for their records than they said has one in
    five minutes for each of them; one whose members restart one by one has two for each."""

    accept_lost_offsets: bool = False
    """If part of an internal partition cannot be read, take the readable rest for all there ever was: the
    last commits in the lost part are forgotten for good, and clients get an older commit or none."""

    append_bytes_max: int = 128 * 1024
    """Bytes of records put into one batch, unless a single record is larger. Some thousand records: encoding
    or replaying them holds up the event loop for about ten milliseconds."""
    snapshot_after_bytes: int = 4 * 1024 * 1024
    """A partition's log is written afresh when it has grown by this much, and by as much as the last snapshot
    took. Reading 4 MiB back takes a fraction of a second."""
    load_bytes: int = 1024 * 1024
    """Bytes asked for in one read while the log is loaded."""

    def validate(self) -> None:
        """Raises `ConfigError` on a value that cannot work."""
        at_least_one = (
            "session_timeout_ms_min",
            "consumer_session_timeout_ms",
            "consumer_heartbeat_interval_ms",
            "streams_session_timeout_ms",
            "streams_heartbeat_interval_ms",
            "share_session_timeout_ms",
            "share_heartbeat_interval_ms",
            "group_size_max",
            "groups_max",
            "group_metadata_bytes_max",
            "members_bytes_max",
            "rebalance_timeout_ms_max",
            "new_member_join_timeout_ms",
            "pending_offsets_max",
            "group_offsets_max",
            "offsets_max",
            "offsets_retention_minutes",
            "offsets_retention_check_interval_ms",
            "offsets_topic_partitions",
            "offsets_topic_replication_factor",
            "offsets_commit_timeout_ms",
            "rebalance_loop_generations",
            "rebalance_loop_ms",
            "append_bytes_max",
            "snapshot_after_bytes",
            "load_bytes",
        )
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise ConfigError(f"groups.{name} is {getattr(self, name)}; it must be at least 1")
        not_negative = (
            "lag_interval_ms",
            "lag_series_max",
            "rebalance_delay_ms",
            "offset_metadata_bytes_max",
            "consumer_assignment_interval_ms",
            "streams_initial_rebalance_delay_ms",
            "streams_assignment_interval_ms",
        )
        for name in not_negative:
            if getattr(self, name) < 0:
                raise ConfigError(f"groups.{name} is {getattr(self, name)}; it must not be negative")
        if self.migration_policy not in MIGRATION_POLICIES:
            raise ConfigError(
                f"groups.migration_policy is {self.migration_policy!r}; it must be one of "
                f"{', '.join(MIGRATION_POLICIES)}"
            )
        for kind in ("consumer", "share", "streams"):
            session = getattr(self, f"{kind}_session_timeout_ms")
            heartbeat = getattr(self, f"{kind}_heartbeat_interval_ms")
            if session <= heartbeat:
                raise ConfigError(
                    f"groups.{kind}_session_timeout_ms is {session}; it must be longer than"
                    f" {kind}_heartbeat_interval_ms, {heartbeat}"
                )
        if not 0 <= self.streams_num_standby_replicas <= STANDBYS_MAX:
            raise ConfigError(
                f"groups.streams_num_standby_replicas is {self.streams_num_standby_replicas}; it must be from 0 to"
                f" {STANDBYS_MAX}"
            )
        if self.session_timeout_ms_max < self.session_timeout_ms_min:
            raise ConfigError(
                f"groups.session_timeout_ms_max is {self.session_timeout_ms_max}; it must be at least"
                f" session_timeout_ms_min, {self.session_timeout_ms_min}"
            )
