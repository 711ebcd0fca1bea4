"""Kafka's configs of brokers that nothing here goes by, by the reason: DescribeConfigs lists them with Kafka's default,
as read-only and with the reason, and a change of one is refused with it.

A tool that reads all configs of a broker finds each that it knows. None of them is kept: those that tools set while
brokers run, and that harm nobody, are in `kept_broker_configs.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from mainstem.nameserver.state.config_value import ConfigType

Row = tuple[str, ConfigType, str | None]
"""A name, its type, and Kafka's default; None: it has none."""

_BOOLEAN, _STRING, _INT, _SHORT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.SHORT
_LONG, _LIST, _CLASS, _PASSWORD = ConfigType.LONG, ConfigType.LIST, ConfigType.CLASS, ConfigType.PASSWORD

_METADATA = "the metadata has a quorum of its own (nameserver.*), which `mainstem cluster` shows and changes."
_NODES = "nodes talk to each other over `rpc`, with TLS by `rpc_tls`, and find each other by `nameserver.peers`."
_LOGIN = (
    "nodes do not log in to each other, or to an issuer of tokens, with SASL: they show certificates, or a shared "
    "secret."
)
_JWKS = "a node asks the issuer for its keys again after pauses of its own length, and checks tokens by them itself."
_KERBEROS = "there is no Kerberos (GSSAPI)."
_CODE = "a node loads no classes; the name is a part of Kafka's own."
_SECRETS = "no secret stands in the settings: `delegation_token.secret_key_file` names a file with it."
_TLS = (
    "it is a matter of each listener (`server.listeners.NAME`), whose own configs `listener.name.NAME.*` are "
    "described; files are in PEM format, and suites are those of OpenSSL."
)
_CONNECTIONS = "how fast clients connect is a quota (connection_creation_rate of an IP)."
_THREADS = "a node serves its clients on one event loop, and bounds the bytes of requests under way."
_WAITS = "requests that wait are found by what they wait for, and taken out at once."
_QUOTAS = "a quota is a bucket that may be in debt, not a window of samples."
_METRICS = "metrics are Prometheus's, at /metrics: counters and histograms without samples in windows."
_RECORDS = (
    "a coordinator's records are batches in the journal like any other; its logs are written afresh by their growth."
)
_COPIES = (
    "an internal topic has as many copies as its write groups have replicas, of which a majority acknowledges; "
    "`__share_group_state` has shares.state_partitions_per_write_group partitions in each."
)
_TRANSACTIONS = "the coordinator knows when a transaction's time is over, and its node asks again by itself."
_REPLICAS = "a write group's replicas follow its log, all queues together, and a majority acknowledges."
_TIER = "Spark uploads merged files into `remote_dir`, and the logs of write groups say what is there."
_JOURNAL = (
    "there is one journal for all queues (`write_dir`), with checkpoints of its own; a disk that fails ends the "
    "node at once."
)
_CORDON = (
    "each node has one directory for the journal and one place for the history; `mainstem cluster drain` empties "
    "a node."
)
_SHARES = "members of a share group have all partitions that they subscribe to, as soon as they do."
_OTHER_UNIT = "the config of the same meaning in milliseconds is the one that holds."

ABSENT_CONFIGS: Mapping[str, tuple[Row, ...]] = {
    _METADATA: (
        ("controller.listener.names", _LIST, None),
        ("controller.quorum.append.linger.ms", _INT, "25"),
        ("controller.quorum.auto.join.enable", _BOOLEAN, "false"),
        ("controller.quorum.bootstrap.servers", _LIST, ""),
        ("controller.quorum.election.backoff.max.ms", _INT, "1000"),
        ("controller.quorum.election.timeout.ms", _INT, "1000"),
        ("controller.quorum.fetch.max.bytes", _INT, "1048576"),
        ("controller.quorum.fetch.snapshot.max.bytes", _INT, "1048576"),
        ("controller.quorum.fetch.timeout.ms", _INT, "2000"),
        ("controller.quorum.request.timeout.ms", _INT, "2000"),
        ("controller.quorum.retry.backoff.ms", _INT, "20"),
        ("controller.quorum.voters", _LIST, ""),
        ("controller.socket.timeout.ms", _INT, "30000"),
        ("initial.broker.registration.timeout.ms", _INT, "60000"),
        ("leader.imbalance.check.interval.seconds", _LONG, "300"),
        ("metadata.log.max.record.bytes.between.snapshots", _LONG, "20971520"),
        ("metadata.log.max.snapshot.interval.ms", _LONG, "3600000"),
        ("metadata.log.segment.bytes", _INT, "1073741824"),
        ("metadata.log.segment.ms", _LONG, "604800000"),
        ("metadata.max.idle.interval.ms", _INT, "500"),
        ("metadata.max.retention.bytes", _LONG, "104857600"),
        ("metadata.max.retention.ms", _LONG, "604800000"),
    ),
    _NODES: (
        ("early.start.listeners", _LIST, None),
        ("inter.broker.listener.name", _STRING, None),
        ("replica.socket.receive.buffer.bytes", _INT, "65536"),
        ("replica.socket.timeout.ms", _INT, "30000"),
        ("request.timeout.ms", _INT, "30000"),
        ("sasl.mechanism.controller.protocol", _STRING, "GSSAPI"),
        ("sasl.mechanism.inter.broker.protocol", _STRING, "GSSAPI"),
        ("security.providers", _STRING, None),
        ("socket.connection.setup.timeout.max.ms", _LONG, "30000"),
        ("socket.connection.setup.timeout.ms", _LONG, "10000"),
    ),
    _LOGIN: (
        ("sasl.client.callback.handler.class", _CLASS, None),
        ("sasl.jaas.config", _PASSWORD, None),
        ("sasl.login.callback.handler.class", _CLASS, None),
        ("sasl.login.class", _CLASS, None),
        ("sasl.login.connect.timeout.ms", _INT, None),
        ("sasl.login.read.timeout.ms", _INT, None),
        ("sasl.login.retry.backoff.max.ms", _LONG, "10000"),
        ("sasl.login.retry.backoff.ms", _LONG, "100"),
        ("sasl.oauthbearer.assertion.algorithm", _STRING, "RS256"),
        ("sasl.oauthbearer.assertion.claim.aud", _STRING, None),
        ("sasl.oauthbearer.assertion.claim.exp.seconds", _INT, "300"),
        ("sasl.oauthbearer.assertion.claim.iss", _STRING, None),
        ("sasl.oauthbearer.assertion.claim.jti.include", _BOOLEAN, "false"),
        ("sasl.oauthbearer.assertion.claim.nbf.seconds", _INT, "60"),
        ("sasl.oauthbearer.assertion.claim.sub", _STRING, None),
        ("sasl.oauthbearer.assertion.file", _STRING, None),
        ("sasl.oauthbearer.assertion.private.key.file", _STRING, None),
        ("sasl.oauthbearer.assertion.private.key.passphrase", _PASSWORD, None),
        ("sasl.oauthbearer.assertion.template.file", _STRING, None),
        ("sasl.oauthbearer.client.credentials.client.id", _STRING, None),
        ("sasl.oauthbearer.client.credentials.client.secret", _PASSWORD, None),
        (
            "sasl.oauthbearer.jwt.retriever.class",
            _CLASS,
            "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        ),
        ("sasl.oauthbearer.scope", _STRING, None),
        ("sasl.oauthbearer.token.endpoint.url", _STRING, None),
    ),
    _JWKS: (
        ("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", _LONG, "10000"),
        ("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", _LONG, "100"),
        (
            "sasl.oauthbearer.jwt.validator.class",
            _CLASS,
            "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        ),
    ),
    _KERBEROS: (("sasl.kerberos.principal.to.local.rules", _LIST, "DEFAULT"),),
    _CODE: (
        ("alter.config.policy.class.name", _CLASS, None),
        ("client.quota.callback.class", _CLASS, None),
        ("config.providers", _LIST, ""),
        ("create.topic.policy.class.name", _CLASS, None),
        ("kafka.metrics.reporters", _LIST, ""),
        ("metric.reporters", _LIST, "org.apache.kafka.common.metrics.JmxReporter"),
        (
            "principal.builder.class",
            _CLASS,
            "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        ),
        ("sasl.server.callback.handler.class", _CLASS, None),
        ("ssl.engine.factory.class", _CLASS, None),
        ("ssl.provider", _STRING, None),
    ),
    _SECRETS: (("delegation.token.secret.key", _PASSWORD, None),),
    _TLS: (
        ("ssl.allow.dn.changes", _BOOLEAN, "false"),
        ("ssl.allow.san.changes", _BOOLEAN, "false"),
        ("ssl.cipher.suites", _LIST, ""),
        ("ssl.client.auth", _STRING, "none"),
        ("ssl.enabled.protocols", _LIST, "TLSv1.2,TLSv1.3"),
        ("ssl.endpoint.identification.algorithm", _STRING, "https"),
        ("ssl.key.password", _PASSWORD, None),
        ("ssl.keymanager.algorithm", _STRING, "SunX509"),
        ("ssl.keystore.certificate.chain", _PASSWORD, None),
        ("ssl.keystore.key", _PASSWORD, None),
        ("ssl.keystore.location", _STRING, None),
        ("ssl.keystore.password", _PASSWORD, None),
        ("ssl.keystore.type", _STRING, "JKS"),
        ("ssl.principal.mapping.rules", _STRING, "DEFAULT"),
        ("ssl.protocol", _STRING, "TLSv1.3"),
        ("ssl.secure.random.implementation", _STRING, None),
        ("ssl.trustmanager.algorithm", _STRING, "PKIX"),
        ("ssl.truststore.certificates", _PASSWORD, None),
        ("ssl.truststore.location", _STRING, None),
        ("ssl.truststore.password", _PASSWORD, None),
        ("ssl.truststore.type", _STRING, "JKS"),
    ),
    _CONNECTIONS: (("max.connection.creation.rate", _INT, "2147483647"),),
    _THREADS: (
        ("group.coordinator.background.threads", _INT, "2"),
        ("group.coordinator.threads", _INT, "4"),
        ("queued.max.requests", _INT, "500"),
        ("share.coordinator.threads", _INT, "1"),
        ("socket.receive.buffer.bytes", _INT, "102400"),
        ("socket.send.buffer.bytes", _INT, "102400"),
    ),
    _WAITS: (
        ("delete.records.purgatory.purge.interval.requests", _INT, "1"),
        ("fetch.purgatory.purge.interval.requests", _INT, "1000"),
        ("producer.purgatory.purge.interval.requests", _INT, "1000"),
        ("share.fetch.purgatory.purge.interval.requests", _INT, "1000"),
    ),
    _QUOTAS: (
        ("alter.log.dirs.replication.quota.window.num", _INT, "11"),
        ("alter.log.dirs.replication.quota.window.size.seconds", _INT, "1"),
        ("controller.quota.window.num", _INT, "11"),
        ("controller.quota.window.size.seconds", _INT, "1"),
        ("quota.window.num", _INT, "11"),
        ("quota.window.size.seconds", _INT, "1"),
        ("remote.log.manager.copy.quota.window.num", _INT, "11"),
        ("remote.log.manager.copy.quota.window.size.seconds", _INT, "1"),
        ("remote.log.manager.fetch.quota.window.num", _INT, "11"),
        ("remote.log.manager.fetch.quota.window.size.seconds", _INT, "1"),
        ("replication.quota.window.num", _INT, "11"),
        ("replication.quota.window.size.seconds", _INT, "1"),
    ),
    _METRICS: (
        ("kafka.metrics.polling.interval.secs", _INT, "10"),
        ("metrics.num.samples", _INT, "2"),
        ("metrics.recording.level", _STRING, "INFO"),
        ("metrics.sample.window.ms", _LONG, "30000"),
    ),
    _RECORDS: (
        ("group.coordinator.append.linger.ms", _INT, "-1"),
        ("offsets.topic.compression.codec", _INT, "0"),
        ("offsets.topic.segment.bytes", _INT, "104857600"),
        ("share.coordinator.append.linger.ms", _INT, "-1"),
        ("share.coordinator.snapshot.update.records.per.snapshot", _INT, "500"),
        ("share.coordinator.state.topic.compression.codec", _INT, "0"),
        ("share.coordinator.state.topic.segment.bytes", _INT, "104857600"),
        ("transaction.state.log.segment.bytes", _INT, "104857600"),
    ),
    _COPIES: (
        ("share.coordinator.state.topic.min.isr", _SHORT, "2"),
        ("share.coordinator.state.topic.num.partitions", _INT, "50"),
        ("share.coordinator.state.topic.replication.factor", _SHORT, "3"),
        ("transaction.state.log.min.isr", _INT, "2"),
    ),
    _TRANSACTIONS: (
        ("add.partitions.to.txn.retry.backoff.max.ms", _INT, "100"),
        ("add.partitions.to.txn.retry.backoff.ms", _INT, "20"),
        ("transaction.abort.timed.out.transaction.cleanup.interval.ms", _INT, "10000"),
    ),
    _REPLICAS: (
        ("num.replica.alter.log.dirs.threads", _INT, None),
        ("replica.fetch.backoff.ms", _INT, "1000"),
        ("replica.fetch.max.bytes", _INT, "1048576"),
        ("replica.fetch.min.bytes", _INT, "1"),
        ("replica.fetch.response.max.bytes", _INT, "10485760"),
        ("replica.fetch.wait.max.ms", _INT, "500"),
        ("replica.high.watermark.checkpoint.interval.ms", _LONG, "5000"),
        ("replica.lag.time.max.ms", _LONG, "30000"),
    ),
    _TIER: (
        ("remote.log.manager.copy.max.bytes.per.second", _LONG, "9223372036854775807"),
        ("remote.log.manager.fetch.max.bytes.per.second", _LONG, "9223372036854775807"),
        ("remote.log.manager.task.interval.ms", _LONG, "30000"),
        ("remote.log.manager.thread.pool.size", _INT, "2"),
        ("remote.log.metadata.custom.metadata.max.bytes", _INT, "128"),
        (
            "remote.log.metadata.manager.class.name",
            _STRING,
            "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        ),
        ("remote.log.metadata.manager.class.path", _STRING, None),
        ("remote.log.metadata.manager.impl.prefix", _STRING, "rlmm.config."),
        ("remote.log.metadata.manager.listener.name", _STRING, None),
        ("remote.log.reader.max.pending.tasks", _INT, "100"),
        ("remote.log.storage.manager.class.name", _STRING, None),
        ("remote.log.storage.manager.class.path", _STRING, None),
        ("remote.log.storage.manager.impl.prefix", _STRING, "rsm.config."),
    ),
    _JOURNAL: (
        ("log.dir.failure.timeout.ms", _LONG, "30000"),
        ("log.flush.offset.checkpoint.interval.ms", _INT, "60000"),
        ("log.flush.start.offset.checkpoint.interval.ms", _INT, "60000"),
    ),
    _CORDON: (("cordoned.log.dirs", _LIST, ""),),
    _SHARES: (
        ("group.share.assignors", _LIST, "simple"),
        ("group.share.max.assignment.interval.ms", _INT, "15000"),
        ("group.share.min.assignment.interval.ms", _INT, "0"),
    ),
    _OTHER_UNIT: (
        ("log.flush.scheduler.interval.ms", _LONG, "9223372036854775807"),
        ("log.retention.hours", _INT, "168"),
        ("log.retention.minutes", _INT, None),
        ("log.roll.hours", _INT, "168"),
        ("log.roll.jitter.hours", _INT, "0"),
    ),
}
