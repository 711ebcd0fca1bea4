"""Kafka's configs of brokers that change while nodes run, and that do nothing here: of threads, buffers and parts of
Kafka that there are none of.

Tools set a cluster's configs as a plan has them, and read them back; a refusal would fail the whole plan. So these are
checked as Kafka checks them, kept, and described, with the reason why they do nothing. None of them protects messages
or clients: configs that bound what others may do (connections, copies to the remote tier), or that decide who gets in
(listeners, certificates, mechanisms), are refused instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from mainstem.nameserver.state.config_value import INT_MAX, LONG_MAX, ConfigType, DeclaredConfig

_LONG, _INT, _DOUBLE = ConfigType.LONG, ConfigType.INT, ConfigType.DOUBLE
_DOUBLE_MAX = 1.7976931348623157e308

_LOOP = "a node serves its clients on one event loop, and its disks by threads of their own number."
_RECOVERY = "a node recovers one journal, whatever number of queues is in it."
_GROUPS = "a write group's replicas follow its log, all queues together."
_SPARK = "Spark compacts, behind the split; what its tasks take is set for the splitter (pipeline.*)."
_PACED = "all background work is held to what publishing leaves over (storage.background_bytes_per_second_min)."
_TIER = "Spark uploads merged files; how much is read back at a time is the node's own setting (read_cache.*)."
_INDEX = "an index is read from the remote tier with the file that it belongs to."
_KERBEROS = "there is no Kerberos (GSSAPI)."
_LOGIN = "nodes do not log in to each other with SASL: they show certificates, or a shared secret."
_RECORDS = "a coordinator's records are written to the journal at once, without a buffer that is kept."


def _declared(
    name: str, kind: ConfigType, default: str, reason: str, documentation: str, least: float, most: float
) -> DeclaredConfig:
    return DeclaredConfig(
        name=name, type=kind, default=default, minimum=least, maximum=most,
        documentation=documentation, without_effect=reason,
    )  # fmt: skip


def _numbers() -> Iterator[DeclaredConfig]:
    """Defaults and bounds are Kafka's."""
    for name, default, least, reason, what in (
        ("background.threads", 10, 1, _LOOP, "Threads for background work."),
        ("num.io.threads", 8, 1, _LOOP, "Threads that process requests."),
        ("num.network.threads", 3, 1, _LOOP, "Threads that receive requests and send responses."),
        ("num.recovery.threads.per.data.dir", 2, 1, _RECOVERY, "Threads that recover logs when a node starts."),
        ("num.replica.fetchers", 1, 1, _GROUPS, "Threads that copy from each leader."),
        ("log.cleaner.threads", 1, 0, _SPARK, "Threads that compact."),
        ("log.cleaner.io.buffer.size", 524_288, 0, _SPARK, "Bytes of the buffers that compaction reads and writes by."),
        ("remote.log.manager.copier.thread.pool.size", 10, 1, _TIER, "Threads that copy to the remote tier."),
        ("remote.log.manager.expiration.thread.pool.size", 10, 1, _TIER, "Threads that delete from the remote tier."),
        ("remote.log.manager.follower.thread.pool.size", 2, 1, _TIER, "Threads of followers of the remote tier."),
        ("remote.log.reader.threads", 10, 1, _TIER, "Threads that read from the remote tier."),
        ("remote.fetch.max.wait.ms", 500, 1, _TIER, "How long a fetch waits for the remote tier."),
        ("group.coordinator.cached.buffer.max.bytes", 1_048_588, 524_288, _RECORDS, "The buffer that is kept."),
        ("share.coordinator.cached.buffer.max.bytes", 1_048_588, 524_288, _RECORDS, "The buffer that is kept."),
    ):
        yield _declared(name, _INT, str(default), reason, what, least, INT_MAX)
    for name, default, least, reason, what in (
        ("log.cleaner.backoff.ms", 15_000, 0, _SPARK, "How long the cleaner sleeps when there is nothing to compact."),
        ("log.cleaner.dedupe.buffer.size", 134_217_728, 0, _SPARK, "Bytes of the table of keys that compaction makes."),
        ("remote.list.offsets.request.timeout.ms", 30_000, 1, _TIER, "How long ListOffsets waits for the remote tier."),
        ("remote.log.index.file.cache.total.size.bytes", 1_073_741_824, 1, _INDEX, "The cache of remote indexes."),
        ("sasl.kerberos.min.time.before.relogin", 60_000, 0, _KERBEROS, "How long two logins lie apart."),
    ):
        yield _declared(name, _LONG, str(default), reason, what, least, LONG_MAX)
    for name, default_text, most, reason, what in (
        ("log.cleaner.io.buffer.load.factor", "0.9", 1.0, _SPARK, "How full the table of keys may become."),
        (
            "log.cleaner.io.max.bytes.per.second",
            "1.7976931348623157E308",
            _DOUBLE_MAX,
            _PACED,
            "The pace of compaction.",
        ),
        ("sasl.kerberos.ticket.renew.jitter", "0.05", 1.0, _KERBEROS, "How much renewals vary."),
        ("sasl.kerberos.ticket.renew.window.factor", "0.8", 1.0, _KERBEROS, "When a ticket is renewed."),
        ("sasl.login.refresh.window.factor", "0.8", 1.0, _LOGIN, "When a node's own login is renewed."),
        ("sasl.login.refresh.window.jitter", "0.05", 0.25, _LOGIN, "How much renewals of it vary."),
    ):
        yield _declared(name, _DOUBLE, default_text, reason, what, 0, most)
    for name, default, most, what in (
        (
            "sasl.login.refresh.buffer.seconds",
            300,
            3_600,
            "How long before a login ends it is renewed.",
        ),
        ("sasl.login.refresh.min.period.seconds", 60, 900, "How long two renewals lie apart."),
    ):
        yield _declared(name, _INT, str(default), _LOGIN, what, 0, most)


def _others() -> Iterator[DeclaredConfig]:
    for name, default, what in (
        ("sasl.kerberos.kinit.cmd", "/usr/bin/kinit", "The program that gets a ticket."),
        ("sasl.kerberos.service.name", "", "The name of the brokers' principal."),
    ):
        yield DeclaredConfig(
            name=name, type=ConfigType.STRING, default=default, documentation=what, without_effect=_KERBEROS
        )
    for name, default, what, reason in (
        (
            "transaction.partition.verification.enable", "true",
            "Whether a transactional batch is refused that belongs to no transaction.", "it always is.",
        ),
        (
            "follower.fetch.last.tiered.offset.enable", "false",
            "Whether a new replica leaves out what is in the remote tier.", "it always does.",
        ),
    ):  # fmt: skip
        yield DeclaredConfig(
            name=name, type=ConfigType.BOOLEAN, default=default, documentation=what, without_effect=reason
        )


KEPT_CONFIGS = (*_numbers(), *_others())
