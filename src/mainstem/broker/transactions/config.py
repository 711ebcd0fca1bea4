"""The settings of transactions. Python names carry units; Kafka's names stand beside them."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError


class TransactionsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds, timeouts and sizes of one node's transaction coordinator."""

    timeout_ms_max: int = 900_000
    """`transaction.max.timeout.ms`: a producer may not ask for a longer one."""
    id_expiration_ms: int = 604_800_000
    """`transactional.id.expiration.ms`: an id that has no transaction for so long is forgotten."""
    id_expiration_check_interval_ms: int = 3_600_000
    """`transaction.remove.expired.transaction.cleanup.interval.ms`"""
    topic_partitions: int = 16
    """`transaction.state.log.num.partitions`. Kafka takes 50, to spread coordinators over many brokers; here a
    partition costs a task and a load at start, and 16 is the default number of write groups."""
    topic_replication_factor: int = 1
    """`transaction.state.log.replication.factor`"""

    ids_max: int = 100_000
    """Transactional ids in one partition of the internal topic; clients choose them, so their number needs a bound."""
    partitions_max: int = 10_000
    """Partitions in one transaction: each change of it writes all of them to the log."""
    bytes_max: int = 64 * 1024 * 1024
    """Memory that the ids of one partition of the internal topic and their open transactions may take, about. A hundred
    thousand ids of usual length take half of it."""

    append_bytes_max: int = 128 * 1024
    """Bytes of records put into one batch, unless a single record is larger."""
    commit_timeout_ms: int = 5_000
    """How long an append may be refused as busy before it counts as failed."""
    snapshot_after_bytes: int = 4 * 1024 * 1024
    """A partition's log is written afresh when it has grown by this much, and by as much as the last snapshot took."""
    load_bytes: int = 1024 * 1024
    """Bytes asked for in one read while the log is loaded."""

    def validate(self) -> None:
        """Raises `ConfigError` on a value that cannot work."""
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ConfigError(f"transactions.{name} is {getattr(self, name)}; it must be at least 1")
