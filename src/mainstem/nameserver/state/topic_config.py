"""Kafka's topic configs as Mainstem understands them, and those of its own (`retention.records`,
`segment.records`, `read.spread.enable`): one table, and the settings that follow from it.

Strategy: a config either has an effect, or is accepted because tools always send it and ignoring it does no
harm (its documentation then says so), or is refused. Nothing that protects messages or readers is ignored:
where Mainstem cannot do what a value asks for, only the value it does keep is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from mainstem.model import TimestampType, TopicSettings
from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.state.config_value import INT_MAX, LONG_MAX, ConfigType, DeclaredConfig, unknown_config

_JOURNAL = "queues share one journal, and its files follow the node's own configuration."
_SYNC = "when messages reach the disk is the node's setting `durability`."
_COMPACTION = "Compaction works on files that are merged (mainstem store compact)."
_LOCAL = "Local copies go as whole files, so that more may remain; what is not in the remote tier yet always stays."
_TIMESTAMPS = (
    "A batch whose header says otherwise is refused with INVALID_TIMESTAMP; what its records say beyond that is not "
    "looked at. Not for topics whose records bear the time they were appended."
)

TOPIC_CONFIGS: Mapping[str, DeclaredConfig] = {
    config.name: config
    for config in (
        DeclaredConfig(
            name="cleanup.policy",
            type=ConfigType.LIST,
            default="delete",
            choices=("delete", "compact"),
            broker_names=("log.cleanup.policy",),
            documentation="What may be removed from a queue: 'delete' removes old records by age and size; 'compact' "
            f"demands a key of every record, and removes those for whose key there is a later one. {_COMPACTION}",
        ),
        DeclaredConfig(
            name="compression.type",
            type=ConfigType.STRING,
            default="producer",
            choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
            broker_names=("compression.type",),
            documentation="How batches are compressed on disk.",
            without_effect="batches are kept as the producer compressed them, whatever is set here.",
        ),
        DeclaredConfig(
            name="compression.gzip.level",
            type=ConfigType.INT,
            default="-1",
            minimum=-1,
            maximum=9,
            broker_names=("compression.gzip.level",),
            documentation="The effort spent on gzip when the broker compresses.",
            without_effect="the broker never compresses.",
        ),
        DeclaredConfig(
            name="compression.lz4.level",
            type=ConfigType.INT,
            default="9",
            minimum=1,
            maximum=17,
            broker_names=("compression.lz4.level",),
            documentation="The effort spent on lz4 when the broker compresses.",
            without_effect="the broker never compresses.",
        ),
        DeclaredConfig(
            name="compression.zstd.level",
            type=ConfigType.INT,
            default="3",
            minimum=-131_072,
            maximum=22,
            broker_names=("compression.zstd.level",),
            documentation="The effort spent on zstd when the broker compresses.",
            without_effect="the broker never compresses.",
        ),
        DeclaredConfig(
            name="delete.retention.ms",
            type=ConfigType.LONG,
            default="86400000",
            minimum=0,
            broker_names=("log.cleaner.delete.retention.ms",),
            documentation="How long a compacted topic keeps the marker that a key was deleted (a record without a "
            "value), counted from when it was compacted first.",
        ),
        DeclaredConfig(
            name="file.delete.delay.ms",
            type=ConfigType.LONG,
            default="60000",
            minimum=0,
            broker_names=("log.segment.delete.delay.ms",),
            documentation="How long files wait between being dropped and being removed.",
            without_effect=_JOURNAL,
        ),
        DeclaredConfig(
            name="flush.messages",
            type=ConfigType.LONG,
            default=str(LONG_MAX),
            minimum=1,
            broker_names=("log.flush.interval.messages",),
            documentation="After how many records the log is forced to disk.",
            without_effect=_SYNC,
        ),
        DeclaredConfig(
            name="flush.ms",
            type=ConfigType.LONG,
            default=str(LONG_MAX),
            minimum=0,
            broker_names=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
            documentation="After how many milliseconds the log is forced to disk.",
            without_effect=_SYNC,
        ),
        DeclaredConfig(
            name="follower.replication.throttled.replicas",
            type=ConfigType.LIST,
            default="",
            documentation="Replicas whose copying is throttled on the follower's side.",
            without_effect="partitions are not copied one by one.",
        ),
        DeclaredConfig(
            name="index.interval.bytes",
            type=ConfigType.INT,
            default="4096",
            minimum=0,
            maximum=INT_MAX,
            broker_names=("log.index.interval.bytes",),
            documentation="How many bytes lie between two entries of the offset index.",
            without_effect="every batch is indexed.",
        ),
        DeclaredConfig(
            name="leader.replication.throttled.replicas",
            type=ConfigType.LIST,
            default="",
            documentation="Replicas whose copying is throttled on the leader's side.",
            without_effect="partitions are not copied one by one.",
        ),
        DeclaredConfig(
            name="local.retention.bytes",
            type=ConfigType.LONG,
            default="-2",
            minimum=-2,
            broker_names=("log.local.retention.bytes",),
            documentation="How many bytes of a partition with remote.storage.enable stay on disk 2 once they are in "
            f"the remote tier; -2 is as many as retention.bytes, -1 is no limit. {_LOCAL}",
        ),
        DeclaredConfig(
            name="local.retention.ms",
            type=ConfigType.LONG,
            default="-2",
            minimum=-2,
            broker_names=("log.local.retention.ms",),
            documentation="How long records of a topic with remote.storage.enable stay on disk 2 once they are in "
            f"the remote tier; -2 is as long as retention.ms, -1 is for ever. {_LOCAL}",
        ),
        DeclaredConfig(
            name="max.compaction.lag.ms",
            type=ConfigType.LONG,
            default=str(LONG_MAX),
            minimum=1,
            broker_names=("log.cleaner.max.compaction.lag.ms",),
            documentation="How old a record of a compacted topic may grow before it is compacted, though little of "
            "its queue waits for that, or segment.ms is more; not less than min.compaction.lag.ms. Less than 600000 "
            "counts as that.",
        ),
        DeclaredConfig(
            name="max.message.bytes",
            type=ConfigType.INT,
            default="1048588",
            minimum=0,
            maximum=INT_MAX,
            broker_names=("message.max.bytes",),
            documentation="The largest record batch, compressed as the producer sent it, that is accepted.",
        ),
        DeclaredConfig(
            name="message.downconversion.enable",
            type=ConfigType.BOOLEAN,
            default="false",
            broker_names=("log.message.downconversion.enable",),
            documentation="Whether batches are converted for clients that read the old record formats.",
            without_effect="such clients are told that their version is not supported.",
        ),
        DeclaredConfig(
            name="message.timestamp.after.max.ms",
            type=ConfigType.LONG,
            default="3600000",
            minimum=0,
            broker_names=("log.message.timestamp.after.max.ms",),
            documentation=f"How far a record's timestamp may lie after the broker's clock. {_TIMESTAMPS}",
        ),
        DeclaredConfig(
            name="message.timestamp.before.max.ms",
            type=ConfigType.LONG,
            default=str(LONG_MAX),
            minimum=0,
            broker_names=("log.message.timestamp.before.max.ms",),
            documentation=f"How far a record's timestamp may lie before the broker's clock. {_TIMESTAMPS}",
        ),
        DeclaredConfig(
            name="message.timestamp.type",
            type=ConfigType.STRING,
            default="CreateTime",
            choices=("CreateTime", "LogAppendTime"),
            broker_names=("log.message.timestamp.type",),
            documentation="Whether a record bears the time its producer gave it or the time it was appended.",
        ),
        DeclaredConfig(
            name="min.cleanable.dirty.ratio",
            type=ConfigType.DOUBLE,
            default="0.5",
            minimum=0,
            maximum=1,
            broker_names=("log.cleaner.min.cleanable.ratio",),
            documentation="A queue is compacted when more than this share of its bytes is not compacted yet.",
        ),
        DeclaredConfig(
            name="min.compaction.lag.ms",
            type=ConfigType.LONG,
            default="0",
            minimum=0,
            broker_names=("log.cleaner.min.compaction.lag.ms",),
            documentation="How long a record of a compacted topic is left alone, at the least.",
        ),
        DeclaredConfig(
            name="min.insync.replicas",
            type=ConfigType.INT,
            default="1",
            minimum=1,
            maximum=INT_MAX,
            broker_names=("min.insync.replicas",),
            documentation="How many replicas must hold a batch before acks=all is answered; where a majority "
            "is more, a majority must.",
        ),
        DeclaredConfig(
            name="preallocate",
            type=ConfigType.BOOLEAN,
            default="false",
            broker_names=("log.preallocate",),
            documentation="Whether log files are given their full size when they are created.",
            without_effect=_JOURNAL,
        ),
        DeclaredConfig(
            name="read.spread.enable",
            type=ConfigType.BOOLEAN,
            default="false",
            documentation="Whether consumers that name their rack (client.rack) are spread over all replicas, in "
            "whatever rack, or over all brokers without storage: for a topic that is read more than its leaders can "
            "give. Mainstem's own: Kafka has no such config.",
        ),
        DeclaredConfig(
            name="remote.log.copy.disable",
            type=ConfigType.BOOLEAN,
            default="false",
            documentation="Whether nothing more of a topic with remote.storage.enable goes to the remote tier; what is "
            "there can be read. local.retention.ms and local.retention.bytes must then be -2, or what retention.ms and "
            "retention.bytes are.",
        ),
        DeclaredConfig(
            name="remote.log.delete.on.disable",
            type=ConfigType.BOOLEAN,
            default="false",
            documentation="Whether what is in the remote tier alone is deleted when remote.storage.enable goes from "
            "true to false; without it that is refused. The log start moves to the first record on disk 2 with one of "
            "the next rounds of retention (leave it true until then).",
        ),
        DeclaredConfig(
            name="remote.storage.enable",
            type=ConfigType.BOOLEAN,
            default="false",
            documentation="Whether merged files of the topic are copied to the remote tier (remote_dir), from where "
            "they are read once their local copies are gone. For topics whose cleanup.policy is 'delete' alone. What "
            "was merged before this was set stays on disk 2.",
        ),
        DeclaredConfig(
            name="retention.bytes",
            type=ConfigType.LONG,
            default="-1",
            minimum=-1,
            broker_names=("log.retention.bytes",),
            documentation="How many bytes a partition of a 'delete' topic keeps, the oldest going first; -1 "
            "is no limit. A little more may remain.",
        ),
        DeclaredConfig(
            name="retention.ms",
            type=ConfigType.LONG,
            default="604800000",
            minimum=-1,
            broker_names=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
            documentation="How long a 'delete' topic keeps its records; -1 is for ever.",
        ),
        DeclaredConfig(
            name="retention.records",
            type=ConfigType.LONG,
            default="-1",
            minimum=-1,
            broker_names=("log.retention.records",),
            documentation="How many offsets a partition of a 'delete' topic keeps, the oldest going first; -1 is no "
            "limit. A little more may remain, never less. Mainstem's own: Kafka has no such config.",
        ),
        DeclaredConfig(
            name="segment.bytes",
            type=ConfigType.INT,
            default="1073741824",
            minimum=14,
            maximum=INT_MAX,
            broker_names=("log.segment.bytes",),
            documentation="How many bytes of a partition go to a file of their own, in Kafka's format, when the queue "
            "store merges what it has; less than 1048576 counts as that. Retention does not wait for a file to fill.",
        ),
        DeclaredConfig(
            name="segment.index.bytes",
            type=ConfigType.INT,
            default="10485760",
            minimum=4,
            maximum=INT_MAX,
            broker_names=("log.index.size.max.bytes",),
            documentation="The size of the index of one file of a partition's log.",
            without_effect=_JOURNAL,
        ),
        DeclaredConfig(
            name="segment.jitter.ms",
            type=ConfigType.LONG,
            default="0",
            minimum=0,
            broker_names=("log.roll.jitter.ms", "log.roll.jitter.hours"),
            documentation="How much the age at which files are closed varies.",
            without_effect=_JOURNAL,
        ),
        DeclaredConfig(
            name="segment.ms",
            type=ConfigType.LONG,
            default="604800000",
            minimum=1,
            broker_names=("log.roll.ms", "log.roll.hours"),
            documentation="How old records of a compacted topic grow before they can be compacted, though little is "
            "written: in Kafka, the age at which a file of the log is closed. Less than 600000 counts as that. "
            "Retention does not wait for a file to be closed: it removes what is due from any.",
        ),
        DeclaredConfig(
            name="segment.records",
            type=ConfigType.LONG,
            default="-1",
            minimum=-1,
            refused=(0,),
            broker_names=("log.segment.records",),
            documentation="How many records of a partition go to a file of their own when the queue store merges what "
            "it has, where segment.bytes does not give them one before; -1 is no count. Files end between batches, "
            "have less than twice as many records, and at least 1048576 bytes, however many records these are. "
            "Mainstem's own: Kafka has no such config.",
        ),
        DeclaredConfig(
            name="unclean.leader.election.enable",
            type=ConfigType.BOOLEAN,
            default="false",
            broker_names=("unclean.leader.election.enable",),
            documentation="Whether a replica that lacks acknowledged records may lead.",
            without_effect="such a replica never leads.",
        ),
    )
}


def config_named(name: str) -> DeclaredConfig:
    """Raises `InvalidConfig` for a name that is no topic config here."""
    config = TOPIC_CONFIGS.get(name)
    if config is not None:
        return config
    raise unknown_config("topic config", name, TOPIC_CONFIGS)


def check_configs(configs: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` for the first key or value that is not allowed, and for two that do not go together."""
    for name, text in configs.items():
        config_named(name).parse(text)
    least, most = (
        cast(int, TOPIC_CONFIGS[name].parse(configs.get(name, TOPIC_CONFIGS[name].default)))
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if least > most:
        raise InvalidConfig(f"min.compaction.lag.ms={least} is more than max.compaction.lag.ms={most}")


def topic_settings(configs: Mapping[str, str], defaults: Mapping[str, str]) -> TopicSettings:
    """The effective settings: a topic's overrides take precedence over the node's defaults, those over
    Kafka's."""

    def value(name: str) -> object:
        config = TOPIC_CONFIGS[name]
        return config.parse(configs.get(name, defaults.get(name, config.default)))

    return TopicSettings(
        cleanup_policy=frozenset(cast(tuple[str, ...], value("cleanup.policy"))),
        retention_ms=cast(int, value("retention.ms")),
        retention_bytes=cast(int, value("retention.bytes")),
        retention_records=cast(int, value("retention.records")),
        segment_bytes=cast(int, value("segment.bytes")),
        segment_ms=cast(int, value("segment.ms")),
        segment_records=cast(int, value("segment.records")),
        max_message_bytes=cast(int, value("max.message.bytes")),
        min_insync_replicas=cast(int, value("min.insync.replicas")),
        message_timestamp_type=TimestampType(value("message.timestamp.type")),
        message_timestamp_before_max_ms=cast(int, value("message.timestamp.before.max.ms")),
        message_timestamp_after_max_ms=cast(int, value("message.timestamp.after.max.ms")),
        min_cleanable_dirty_ratio=cast(float, value("min.cleanable.dirty.ratio")),
        min_compaction_lag_ms=cast(int, value("min.compaction.lag.ms")),
        max_compaction_lag_ms=cast(int, value("max.compaction.lag.ms")),
        delete_retention_ms=cast(int, value("delete.retention.ms")),
        remote_storage_enable=cast(bool, value("remote.storage.enable")),
        remote_log_copy_disable=cast(bool, value("remote.log.copy.disable")),
        remote_log_delete_on_disable=cast(bool, value("remote.log.delete.on.disable")),
        local_retention_ms=cast(int, value("local.retention.ms")),
        local_retention_bytes=cast(int, value("local.retention.bytes")),
        read_spread_enable=cast(bool, value("read.spread.enable")),
    )
