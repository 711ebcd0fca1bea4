"""Kafka's names of settings: what a `server.properties` comes to, and what is refused with what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.errors import ConfigError
from mainstem.node.config import NodeConfig
from mainstem.node.config_sources import load
from mainstem.node.kafka_names import properties
from mainstem.server.listener_config import ListenerConfig

PROPERTIES = """\
# two listeners, one for the inside
node.id=7
broker.rack = east
listeners=PLAINTEXT://127.0.0.1:9092,INSIDE://:9093,\\
    OUTSIDE://0.0.0.0:9094
advertised.listeners=PLAINTEXT://localhost:9092,OUTSIDE://queue.example:443
listener.security.protocol.map=INSIDE:SSL,OUTSIDE:SASL_SSL,PLAINTEXT:PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location=/tls/node.pem
ssl.enabled.protocols=TLSv1.3
listener.name.inside.ssl.client.auth=required
listener.name.inside.ssl.truststore.type=PEM
listener.name.inside.ssl.truststore.location=/tls/users.pem
listener.name.inside.ssl.principal.mapping.rules=RULE:^CN=(.*?),OU=(.*)$/$1/L,DEFAULT
listener.name.outside.ssl.keystore.location=/tls/outside.pem
listener.name.outside.sasl.enabled.mechanisms=SCRAM-SHA-512
sasl.enabled.mechanisms=SCRAM-SHA-256,PLAIN
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin;User:operator
replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
! and one of ours
storage.write_cache_bytes=64MB
max.connections.per.ip: 20
"""


def of_properties(text: str, directory: Path, *assignments: str) -> NodeConfig:
    file = directory / "server.properties"
    file.write_text(text)
    return load(file=file, environment={}, flags={}, assignments=assignments)


def test_a_file_of_properties_is_a_configuration(tmp_path: Path) -> None:
    config = of_properties(PROPERTIES, tmp_path)
    assert (config.node_id, config.rack, config.listen) == (7, "east", ("127.0.0.1:9092",))
    assert config.server.advertise == "localhost:9092"
    assert config.server.listeners == {
        "INSIDE": ListenerConfig(
            listen=":9093", protocol="SSL", certificate="/tls/node.pem", ca="/tls/users.pem", client_auth="required",
            principal_mapping_rules=("RULE:^CN=(.*?),OU=(.*)$/$1/L", "DEFAULT"), tls_min="1.3",
        ),
        "OUTSIDE": ListenerConfig(
            listen="0.0.0.0:9094", protocol="SASL_SSL", advertise="queue.example:443", certificate="/tls/outside.pem",
            mechanisms=("SCRAM-SHA-512",), tls_min="1.3",
        ),
    }  # fmt: skip
    assert config.sasl.mechanisms == ("SCRAM-SHA-256", "PLAIN", "SCRAM-SHA-512"), "all that any listener takes"
    assert config.broker.rack_aware_reads
    assert config.authorizer.enabled
    assert config.authorizer.super_users_named == {"User:admin", "User:operator"}
    assert config.storage.write_cache_bytes == 64_000_000
    assert config.server.connections_per_host_max == 20


def test_other_sources_take_them_as_well(tmp_path: Path) -> None:
    file = tmp_path / "mainstem.toml"
    file.write_text('"super.users" = "User:a"\n"listeners" = ["SSL://127.0.0.1:1"]\n"num.partitions" = 3\n')
    config = load(
        file=file, environment={}, flags={},
        assignments=["ssl.keystore.location=/node.pem", "ssl.keystore.type=PEM", "super.users=User:b"],
    )  # fmt: skip
    assert config.authorizer.super_users == "User:b", "as for ours, the last source counts"
    assert config.listen == ()
    assert config.server.listeners["SSL"].certificate == "/node.pem"
    assert config.broker.num_partitions == 3


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("listeners=127.0.0.1:9092", "NAME://HOST:PORT"),
        ("listeners=A://:1,a://:2", "has A twice"),
        ("listeners=PLAINTEXT://:1\nadvertised.listeners=B://h:1", "there is no listener B, but PLAINTEXT"),
        ("advertised.listeners=B://h:1", "is about the listeners of `listeners`, which is not given"),
        ("listeners=A://:1", "protocol"),
        ("listeners=A://:1\nlistener.security.protocol.map=A", "NAME:PROTOCOL"),
        ("listeners=SSL://:1\nssl.keystore.location=/k.jks", "ssl.keystore.type=PEM"),
        ("listeners=SSL://:1\nssl.keystore.location=/k\nssl.keystore.type=PKCS12", "of the type PKCS12"),
        ("listeners=SSL://:1", "certificate is missing"),
        ("listeners=SSL://:1\nssl.keystore.key=-----BEGIN", "lie in PEM files"),
        ("listeners=SSL://:1\nssl.key.password=secret", "key_password_file"),
        ("listeners=SSL://:1\nssl.enabled.protocols=TLSv1.1,TLSv1.2", "TLSv1.1 is not spoken"),
        ("listeners=SSL://:1\nssl.enabled.protocols=TLSv1.2", "TLSv1.3 cannot be left out"),
        ("listeners=SSL://:1\nssl.principal.mapping.rules=RULE:(", "RULE:pattern/replacement/"),
        ("listeners=SSL://:1\nlistener.name.other.ssl.client.auth=none", "there is no listener OTHER"),
        ("listeners=SSL://:1\nlistener.name.ssl.ssl.key.password=x", "key_password_file"),
        ("listeners=SSL://:1\nlistener.name.ssl.max.connections=4", "settings of its own for"),
        ("listener.name.a.plain.sasl.jaas.config=x", "mainstem user add"),
        ("authorizer.class.name=com.example.Ours", "StandardAuthorizer"),
        ("replica.selector.class=com.example.Nearest", "RackAwareReplicaSelector, or none"),
        ("inter.broker.listener.name=INSIDE", "rpc_tls"),
        ("process.roles=broker,controller", "`roles`"),
        ("log.dirs=/data", "write_dir"),
        ("node.id=1\nbroker.id=2", r"broker.id and node_id .*node.id\) set the same"),
        ("node.id=seven", "a whole number"),
        ("num.network.threads=3", "unknown key num.network.threads"),
        ("node.id", "line 1: it takes name=value"),
        ("=7", "line 1: it takes name=value"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_its_file_and_what_to_do(
    lines: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        of_properties(lines, tmp_path)
    assert "server.properties" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("ours", ["node_id=3", "server.listeners={}", "server.advertise=h:1", "listen=127.0.0.1:1"])
def test_both_names_of_one_thing_are_refused(ours: str, tmp_path: Path) -> None:
    key = ours.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{key} .--set {key}. set the same; leave one out"):
        of_properties(PROPERTIES, tmp_path, ours)


def test_properties_are_read_as_java_reads_them() -> None:
    text = "a=1\n b : 2 = 3\n\n#c=4\n!d=5\ne=x,\\\n   y\nf=\n"
    assert properties(text) == {"a": "1", "b": "2 = 3", "e": "x,y", "f": ""}
