"""Kafka's names of broker settings, for those who bring a `server.properties`: each means a setting of ours.

Most are one of ours under another name. Listeners are several settings in Kafka, which meet here: `listeners` has the
addresses, `advertised.listeners` those for clients, `listener.security.protocol.map` the protocols, and `ssl.*` the
certificates, for all listeners or for one of them (`listener.name.inside.ssl.…`, which goes before). Names that ask for
what a node does in another way, or not at all, are refused with what to do instead: a setting of security that is
taken and has no effect would be worse.

The names are those of https://kafka.apache.org/documentation/#brokerconfigs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mainstem.broker.settings.group_settings import CONSUMER_FIELDS, SHARE_FIELDS
from mainstem.errors import ConfigError
from mainstem.model import SCRAM_MECHANISMS
from mainstem.nameserver.state.resource_configs.group_configs import GROUP_CONFIGS
from mainstem.server.listener_config import DEFAULT_NAME

LISTENERS, ADVERTISED, PROTOCOLS = "listeners", "advertised.listeners", "listener.security.protocol.map"
AUTHORIZER = "authorizer.class.name"
OF_ONE_LISTENER = "listener.name."

OURS = {
    "node.id": ("node_id",),
    "broker.id": ("node_id",),
    "broker.rack": ("rack",),
    "super.users": ("authorizer", "super_users"),
    "allow.everyone.if.no.acl.found": ("authorizer", "allow_everyone_if_no_acl_found"),
    "sasl.server.max.receive.size": ("server", "frame_bytes_unauthenticated_max"),
    "sasl.oauthbearer.jwks.endpoint.url": ("sasl", "oauth_jwks"),
    "sasl.oauthbearer.expected.issuer": ("sasl", "oauth_issuer"),
    "sasl.oauthbearer.expected.audience": ("sasl", "oauth_audiences"),
    "sasl.oauthbearer.sub.claim.name": ("sasl", "oauth_user_claim"),
    "sasl.oauthbearer.scope.claim.name": ("sasl", "oauth_scope_claim"),
    "sasl.oauthbearer.clock.skew.seconds": ("sasl", "oauth_clock_skew_seconds"),
    "connections.max.reauth.ms": ("sasl", "session_ms_max"),
    "connection.failed.authentication.delay.ms": ("sasl", "failed_delay_ms"),
    "connections.max.idle.ms": ("server", "connection_idle_ms_max"),
    "max.connections": ("server", "connections_max"),
    "max.connections.per.ip": ("server", "connections_per_host_max"),
    "max.connections.per.ip.overrides": ("server", "connections_of_hosts"),
    "socket.request.max.bytes": ("server", "frame_bytes_max"),
    "queued.max.request.bytes": ("server", "request_bytes_in_flight_max"),
    "auto.create.topics.enable": ("broker", "auto_create_topics"),
    "num.partitions": ("broker", "num_partitions"),
    "default.replication.factor": ("broker", "default_replication_factor"),
    "fetch.max.bytes": ("broker", "fetch_bytes_max"),
    "max.incremental.fetch.session.cache.slots": ("broker", "fetch_sessions_max"),
    "telemetry.max.bytes": ("broker", "telemetry_bytes_max"),
    "socket.listen.backlog.size": ("server", "backlog"),
    "broker.heartbeat.interval.ms": ("nameserver", "heartbeat_ms"),
    "broker.session.timeout.ms": ("nameserver", "dead_ms"),
    "delegation.token.expiry.check.interval.ms": ("nameserver", "token_expiry_check_ms"),
    "delegation.token.expiry.time.ms": ("delegation_token", "expiry_time_ms"),
    "delegation.token.max.lifetime.ms": ("delegation_token", "max_lifetime_ms"),
    "group.consumer.migration.policy": ("groups", "migration_policy"),
    "group.initial.rebalance.delay.ms": ("groups", "rebalance_delay_ms"),
    "group.max.session.timeout.ms": ("groups", "session_timeout_ms_max"),
    "group.max.size": ("groups", "group_size_max"),
    "group.min.session.timeout.ms": ("groups", "session_timeout_ms_min"),
    "group.share.max.share.sessions": ("shares", "sessions_max"),
    "offset.metadata.max.bytes": ("groups", "offset_metadata_bytes_max"),
    "offsets.commit.timeout.ms": ("groups", "offsets_commit_timeout_ms"),
    "offsets.load.buffer.size": ("groups", "load_bytes"),
    "offsets.retention.check.interval.ms": ("groups", "offsets_retention_check_interval_ms"),
    "offsets.retention.minutes": ("groups", "offsets_retention_minutes"),
    "offsets.topic.num.partitions": ("groups", "offsets_topic_partitions"),
    "offsets.topic.replication.factor": ("groups", "offsets_topic_replication_factor"),
    "share.coordinator.load.buffer.size": ("shares", "load_bytes"),
    "share.coordinator.write.timeout.ms": ("shares", "append_timeout_ms"),
    "transaction.max.timeout.ms": ("transactions", "timeout_ms_max"),
    "transaction.remove.expired.transaction.cleanup.interval.ms": ("transactions", "id_expiration_check_interval_ms"),
    "transaction.state.log.load.buffer.size": ("transactions", "load_bytes"),
    "transaction.state.log.num.partitions": ("transactions", "topic_partitions"),
    "transaction.state.log.replication.factor": ("transactions", "topic_replication_factor"),
    "transactional.id.expiration.ms": ("transactions", "id_expiration_ms"),
    **{f"group.{name}": ("groups", field) for name, field in CONSUMER_FIELDS.items()},
    **{GROUP_CONFIGS[name].broker_names[0]: ("shares", field) for name, field in SHARE_FIELDS.items()
       if GROUP_CONFIGS[name].broker_names},
}  # fmt: skip
"""Kafka's name → the path of our setting, which takes the same value."""

AUTHORIZERS = ("org.apache.kafka.metadata.authorizer.StandardAuthorizer", "kafka.security.authorizer.AclAuthorizer")
"""Those whose rules `authorizer.enabled` has, too."""

SELECTOR = "replica.selector.class"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The one whose choice `broker.rack_aware_reads` makes; without a selector consumers read from leaders alone."""

KEYSTORE, KEYSTORE_TYPE = "ssl.keystore.location", "ssl.keystore.type"
TRUSTSTORE, TRUSTSTORE_TYPE = "ssl.truststore.location", "ssl.truststore.type"
CLIENT_AUTH, TLS_VERSIONS, MAPPING = "ssl.client.auth", "ssl.enabled.protocols", "ssl.principal.mapping.rules"
MECHANISMS = "sasl.enabled.mechanisms"
OF_TLS = (KEYSTORE, KEYSTORE_TYPE, TRUSTSTORE, TRUSTSTORE_TYPE, CLIENT_AUTH, TLS_VERSIONS, MAPPING)

_IN_A_FILE = "certificates and keys lie in PEM files here, which {} names; it is read again when it changes"
_NODES = "nodes talk to each other over `rpc`, with TLS by `rpc_tls`, and find each other by `nameserver.peers`"
_NO_SECRETS = "no password stands in the settings: `server.listeners.NAME.key_password_file` names a file with it"
INSTEAD = {
    "ssl.keystore.certificate.chain": _IN_A_FILE.format(KEYSTORE),
    "ssl.keystore.key": _IN_A_FILE.format(KEYSTORE),
    "ssl.truststore.certificates": _IN_A_FILE.format(TRUSTSTORE),
    "ssl.key.password": _NO_SECRETS,
    "ssl.keystore.password": _NO_SECRETS,
    "ssl.truststore.password": "a PEM file of authorities has no password",
    "ssl.cipher.suites": "the suites are those of OpenSSL's configuration on this machine",
    "inter.broker.listener.name": _NODES,
    "security.inter.broker.protocol": _NODES,
    "sasl.mechanism.inter.broker.protocol": _NODES,
    "controller.listener.names": _NODES,
    "controller.quorum.voters": _NODES,
    "controller.quorum.bootstrap.servers": _NODES,
    "zookeeper.connect": _NODES,
    "process.roles": "`roles` says what a node does: nameserver, storage, broker",
    "log.dir": "`write_dir` is for the journal, `store_dir` for the history of queues",
    "log.dirs": "`write_dir` is for the journal, `store_dir` for the history of queues",
}
"""Kafka's name → the way in which a node does it; each of these is to be left out."""
_JAAS = "users are the cluster's (`mainstem user add`, `sasl.bootstrap_user`), or in the file `sasl.plain_users_file`"

_END_POINT = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)://(.*:\d+)")
_RULES = re.compile(r"\s*(DEFAULT|RULE:(?:\\.|[^\\/])*/(?:\\.|[^\\/])*/[LU]?)\s*(?:,|$)")
_PROPERTY = re.compile(r"([^=:\s]+)\s*[=:]\s*(.*)")
VERSIONS_OF_TLS = {"TLSv1.2": "1.2", "TLSv1.3": "1.3"}


class Given(NamedTuple):
    """The text of a setting, and the source that an error names."""

    text: str
    origin: str


class Translated(NamedTuple):
    """A setting of ours: its path, a text or a plain value, and the source with Kafka's name."""

    path: tuple[str, ...]
    value: object
    origin: str


def is_kafkas(name: str) -> bool:
    """Whether a setting has one of Kafka's names that this module knows."""
    known = (LISTENERS, ADVERTISED, PROTOCOLS, AUTHORIZER, SELECTOR, MECHANISMS, *OF_TLS)
    return name.startswith(OF_ONE_LISTENER) or name.endswith("jaas.config") or name in {*known, *OURS, *INSTEAD}


def translated(given: Mapping[str, Given]) -> list[Translated]:
    """Our settings of those under Kafka's names. Raises ConfigError naming the source, the name and what to do."""
    found = []
    for name, (text, origin) in given.items():
        bare = _bare(name)[1]
        if bare in INSTEAD or bare.endswith("jaas.config"):
            raise ConfigError(f"{origin}: {name}: {INSTEAD.get(bare, _JAAS)}; leave it out")
        if name in OURS:
            found.append(Translated(OURS[name], text, f"{origin}: {name}"))
        elif name == AUTHORIZER:
            if text not in ("", *AUTHORIZERS):
                raise ConfigError(f"{origin}: {name} = {text}: there is the one of Kafka itself, {AUTHORIZERS[0]}")
            found.append(Translated(("authorizer", "enabled"), bool(text), f"{origin}: {name}"))
        elif name == SELECTOR:
            if text not in ("", RACK_AWARE_SELECTOR):
                raise ConfigError(f"{origin}: {name} = {text}: there is {RACK_AWARE_SELECTOR}, or none")
            found.append(Translated(("broker", "rack_aware_reads"), bool(text), f"{origin}: {name}"))
    listeners = _listeners(given)
    return [*found, *_mechanisms(given, listeners), *listeners]


def _mechanisms(given: Mapping[str, Given], listeners: Iterable[Translated]) -> list[Translated]:
    """`sasl.mechanisms`, which has all that any listener takes: in Kafka a listener's own list need not be a part of
    the one for all."""
    general = given.get(MECHANISMS)
    wanted = dict.fromkeys(_parts(general.text) if general is not None else ())
    origin = general.origin if general is not None else ""
    for listener in listeners:
        if isinstance(listener.value, dict):
            wanted |= dict.fromkeys(listener.value.get("mechanisms", ()))
            origin = origin or listener.origin
    return [Translated(("sasl", "mechanisms"), list(wanted), f"{origin}: {MECHANISMS}")] if wanted else []


def _listeners(given: Mapping[str, Given]) -> list[Translated]:
    if LISTENERS not in given:
        for name, (_, origin) in given.items():
            if name in (ADVERTISED, PROTOCOLS, *OF_TLS) or name.startswith(OF_ONE_LISTENER):
                raise ConfigError(f"{origin}: {name} is about the listeners of `listeners`, which is not given")
        return []
    origin = given[LISTENERS].origin
    addresses = _end_points(LISTENERS, given[LISTENERS])
    advertised = _end_points(ADVERTISED, given[ADVERTISED]) if ADVERTISED in given else {}
    protocols = _protocols(given)
    _check_names(given, addresses, advertised)
    found = []
    plain: list[str] = []
    for name, address in addresses.items():
        protocol = protocols.get(name, name)
        own = Settings(given, name)
        if name == DEFAULT_NAME and protocol == "PLAINTEXT":
            plain.append(address)
            if name in advertised:
                found.append(Translated(("server", "advertise"), advertised[name], f"{origin}: {ADVERTISED}"))
            continue
        table: dict[str, object] = {"listen": address, "protocol": protocol}
        if name in advertised:
            table["advertise"] = advertised[name]
        if "SSL" in protocol.split("_"):
            table |= _over_tls(own)
        if protocol.startswith("SASL"):
            mechanisms = own.get(MECHANISMS)
            table["mechanisms"] = list(SCRAM_MECHANISMS) if mechanisms is None else _parts(mechanisms.text)
        found.append(Translated(("server", "listeners", name), table, f"{origin}: {LISTENERS}"))
    return [Translated(("listen",), plain, f"{origin}: {LISTENERS}"), *found]


class Settings:
    """The settings of one listener: its own, else those of all."""

    def __init__(self, given: Mapping[str, Given], listener: str) -> None:
        self._given = given
        self._listener = listener

    def get(self, name: str) -> Given | None:
        own = (value for key, value in self._given.items() if _bare(key) == (self._listener, name))
        return next(own, self._given.get(name))


def _over_tls(own: Settings) -> dict[str, object]:
    table: dict[str, object] = {}
    for location, kind, key in ((KEYSTORE, KEYSTORE_TYPE, "certificate"), (TRUSTSTORE, TRUSTSTORE_TYPE, "ca")):
        if (file := own.get(location)) is None:
            continue
        form = own.get(kind) or Given("JKS", file.origin)
        if form.text.upper() != "PEM":
            raise ConfigError(
                f"{form.origin}: {location} is of the type {form.text} ({kind}), and files are in PEM here: "
                f"`keytool -importkeystore -deststoretype PKCS12` and `openssl pkcs12` make one; set {kind}=PEM"
            )
        table[key] = file.text
    if (client_auth := own.get(CLIENT_AUTH)) is not None:
        table["client_auth"] = client_auth.text
    if (versions := own.get(TLS_VERSIONS)) is not None:
        wanted = _parts(versions.text)
        if unknown := [version for version in wanted if version not in VERSIONS_OF_TLS]:
            raise ConfigError(
                f"{versions.origin}: {TLS_VERSIONS}: {unknown[0]} is not spoken; {', '.join(VERSIONS_OF_TLS)} are"
            )
        if wanted == ["TLSv1.2"]:
            raise ConfigError(f"{versions.origin}: {TLS_VERSIONS}: TLSv1.3 cannot be left out; add it")
        table["tls_min"] = min(VERSIONS_OF_TLS[version] for version in wanted)
    if (rules := own.get(MAPPING)) is not None:
        table["principal_mapping_rules"] = _rules(rules)
    return table


def _end_points(name: str, given: Given) -> dict[str, str]:
    """The addresses of `NAME://HOST:PORT,…` by the listeners' names."""
    found: dict[str, str] = {}
    for part in _parts(given.text):
        match = _END_POINT.fullmatch(part)
        if match is None:
            raise ConfigError(f"{given.origin}: {name} = {part}: it takes NAME://HOST:PORT, separated by commas")
        listener = match[1].upper()
        if listener in found:
            raise ConfigError(f"{given.origin}: {name} has {listener} twice")
        found[listener] = match[2]
    return found


def _protocols(given: Mapping[str, Given]) -> dict[str, str]:
    if PROTOCOLS not in given:
        return {}
    text, origin = given[PROTOCOLS]
    found = {}
    for part in _parts(text):
        listener, colon, protocol = part.partition(":")
        if not colon:
            raise ConfigError(f"{origin}: {PROTOCOLS} = {part}: it takes NAME:PROTOCOL, separated by commas")
        found[listener.strip().upper()] = protocol.strip().upper()
    return found


def _check_names(given: Mapping[str, Given], addresses: Mapping[str, str], advertised: Mapping[str, str]) -> None:
    known = ", ".join(addresses)
    for listener in advertised:
        if listener not in addresses:
            raise ConfigError(f"{given[ADVERTISED].origin}: {ADVERTISED}: there is no listener {listener}, but {known}")
    for name, (_, origin) in given.items():
        listener, setting = _bare(name)
        if not listener:
            continue
        if listener not in addresses:
            raise ConfigError(f"{origin}: {name}: there is no listener {listener}, but {known}")
        if setting not in (*OF_TLS, MECHANISMS):
            taken = ", ".join((*OF_TLS, MECHANISMS))
            raise ConfigError(f"{origin}: {name}: a listener may have settings of its own for {taken}")


def _bare(name: str) -> tuple[str, str]:
    """The listener that a name is about, in capitals, and the rest; no listener: ("", name)."""
    if not name.startswith(OF_ONE_LISTENER):
        return "", name
    listener, _, rest = name.removeprefix(OF_ONE_LISTENER).partition(".")
    return listener.upper(), rest


def _rules(given: Given) -> list[str]:
    """The rules, which may have commas within."""
    found, at = [], 0
    while at < len(given.text):
        match = _RULES.match(given.text, at)
        if match is None:
            raise ConfigError(
                f"{given.origin}: {MAPPING} = {given.text[at:]}: it takes RULE:pattern/replacement/[LU] and DEFAULT, "
                "separated by commas"
            )
        found.append(match[1])
        at = match.end()
    return found


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def properties(text: str) -> dict[str, str]:
    """The settings of a file in the form of `server.properties`: `name=value` or `name: value` on a line, which `\\` at
    its end continues; `#` and `!` begin comments. Raises ValueError naming the line."""
    found: dict[str, str] = {}
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        whole = line.strip()
        if not whole or whole[0] in "#!":
            continue
        while whole.endswith("\\"):
            whole = whole[:-1] + next(lines, (0, ""))[1].strip()
        match = _PROPERTY.fullmatch(whole)
        if match is None:
            raise ValueError(f"line {number}: it takes name=value")
        found[match[1]] = match[2]
    return found
