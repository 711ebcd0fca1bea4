"""Kafka's configs of brokers that change while nodes run, and that do nothing here: of threads, buffers and parts of
Kafka that there are none of.

Tools set a cluster's configs as a plan has them, and read them back; a refusal would fail the whole plan. So these are
checked as Kafka checks them, kept, and described, with the reason why they do nothing. None of them protects messages
or clients: configs that bound what others may do (connections, copies to the remote tier), or that decide who gets in
(listeners, certificates, mechanisms), are refused instead.
"""

from __future__ import annotations

from mainstem.nameserver.state.config_value import INT_MAX, LONG_MAX, LONG_MIN, ConfigType, DeclaredConfig

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


def _int(name: str, default: int, least: int, reason: str, documentation: str) -> DeclaredConfig:
    return _config(name, ConfigType.INT, str(default), reason, documentation, least, INT_MAX)


def _short(name: str, default: int, least: int, reason: str, documentation: str, *, most: int) -> DeclaredConfig:
    return _config(name, ConfigType.SHORT, str(default), reason, documentation, least, most)


def _long(name: str, default: int, least: int, reason: str, documentation: str) -> DeclaredConfig:
    return _config(name, ConfigType.LONG, str(default), reason, documentation, least)


def _double(name: str, default: str, most: float, reason: str, documentation: str) -> DeclaredConfig:
    return _config(name, ConfigType.DOUBLE, default, reason, documentation, 0, most)


def _text(name: str, default: str, reason: str, documentation: str) -> DeclaredConfig:
    return _config(name, ConfigType.STRING, default, reason, documentation)


def _switch(name: str, default: str, reason: str, documentation: str) -> DeclaredConfig:
    return _config(name, ConfigType.BOOLEAN, default, reason, documentation)


def _config(
    name: str, kind: ConfigType, default: str, reason: str, documentation: str,
    least: float = LONG_MIN, most: float = LONG_MAX,
) -> DeclaredConfig:  # fmt: skip
    return DeclaredConfig(
        name=name, type=kind, default=default, minimum=least, maximum=most,
        documentation=documentation, without_effect=reason,
    )  # fmt: skip


KEPT_CONFIGS = (
    _int("background.threads", 10, 1, _LOOP, "Threads for background work."),
    _int("num.io.threads", 8, 1, _LOOP, "Threads that process requests."),
    _int("num.network.threads", 3, 1, _LOOP, "Threads that receive requests and send responses."),
    _int("num.recovery.threads.per.data.dir", 2, 1, _RECOVERY, "Threads that recover logs when a node starts."),
    _int("num.replica.fetchers", 1, 1, _GROUPS, "Threads that copy from each leader."),
    _int("log.cleaner.threads", 1, 0, _SPARK, "Threads that compact."),
    _int("log.cleaner.io.buffer.size", 524_288, 0, _SPARK, "Bytes of the buffers that compaction reads and writes by."),
    _int("remote.log.manager.copier.thread.pool.size", 10, 1, _TIER, "Threads that copy to the remote tier."),
    _int("remote.log.manager.expiration.thread.pool.size", 10, 1, _TIER, "Threads that delete from the remote tier."),
    _int("remote.log.manager.follower.thread.pool.size", 2, 1, _TIER, "Threads of followers of the remote tier."),
    _int("remote.log.reader.threads", 10, 1, _TIER, "Threads that read from the remote tier."),
    _int("remote.fetch.max.wait.ms", 500, 1, _TIER, "How long a fetch waits for the remote tier."),
    _int("group.coordinator.cached.buffer.max.bytes", 1_048_588, 524_288, _RECORDS, "The buffer that is kept."),
    _int("share.coordinator.cached.buffer.max.bytes", 1_048_588, 524_288, _RECORDS, "The buffer that is kept."),
    _long("log.cleaner.backoff.ms", 15_000, 0, _SPARK, "How long the cleaner sleeps when there is nothing to compact."),
    _long("log.cleaner.dedupe.buffer.size", 134_217_728, 0, _SPARK,
        "Bytes of the table of keys that compaction makes."),
    _long("remote.list.offsets.request.timeout.ms", 30_000, 1, _TIER,
        "How long ListOffsets waits for the remote tier."),
    _long("remote.log.index.file.cache.total.size.bytes", 1_073_741_824, 1, _INDEX, "The cache of remote indexes."),
    _long("sasl.kerberos.min.time.before.relogin", 60_000, 0, _KERBEROS, "How long two logins lie apart."),
    _double("log.cleaner.io.buffer.load.factor", "0.9", 1, _SPARK, "How full the table of keys may become."),
    _double("log.cleaner.io.max.bytes.per.second", "1.7976931348623157E308", _DOUBLE_MAX, _PACED,
        "The pace of compaction."),
    _double("sasl.kerberos.ticket.renew.jitter", "0.05", 1, _KERBEROS, "How much renewals vary."),
    _double("sasl.kerberos.ticket.renew.window.factor", "0.8", 1, _KERBEROS, "When a ticket is renewed."),
    _double("sasl.login.refresh.window.factor", "0.8", 1, _LOGIN, "When a node's own login is renewed."),
    _double("sasl.login.refresh.window.jitter", "0.05", 0.25, _LOGIN, "How much renewals of it vary."),
    _short("sasl.login.refresh.buffer.seconds", 300, 0, _LOGIN,
        "How long before a login ends it is renewed.", most=3_600),
    _short("sasl.login.refresh.min.period.seconds", 60, 0, _LOGIN, "How long two renewals lie apart.", most=900),
    _text("sasl.kerberos.kinit.cmd", "/usr/bin/kinit", _KERBEROS, "The program that gets a ticket."),
    _text("sasl.kerberos.service.name", "", _KERBEROS, "The name of the brokers' principal."),
    _switch("transaction.partition.verification.enable", "true", "it always is.",
        "Whether a transactional batch is refused that belongs to no transaction."),
    _switch("follower.fetch.last.tiered.offset.enable", "false", "it always does.",
        "Whether a new replica leaves out what is in the remote tier."),
)  # fmt: skip
"""Defaults and bounds are Kafka's."""
