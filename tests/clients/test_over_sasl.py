"""Other people's clients that show who they are: passwords, SCRAM, and tokens of an issuer."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.net.sasl.oauth import AbstractTokenProvider
from tests.cli.documented import documented_keys, keys_of
from tests.clients.conftest import SETTINGS
from tests.harness.free_port import HOST, free_port
from tests.harness.patience import PATIENCE_MS, PATIENCE_SECONDS
from tests.harness.serving import Serving
from tests.server.tls.certificates import Authority

from mainstem.cli.main import run

KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
VALUES = [b"a" * size for size in (1, 100, 20_000)]
ADMIN_PASSWORD = "the first password of all"
PASSWORD = 'p,a=s s\\w"ord'
VIEWS = (
    "/metrics", "/v1/cluster", "/v1/cluster/explain/node/1", "/v1/cluster/explain/group/0", "/v1/tenants",
    "/v1/tenants/usage", "/v1/topics", "/v1/groups", "/v1/split", "/v1/store", "/v1/store/usage",
)  # fmt: skip
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def token(user: str = "an", lasts_seconds: int = 300) -> str:
    claims = {"sub": user, "aud": "mainstem", "iss": "https://issuer", "exp": int(time.time()) + lasts_seconds}
    return jwt.encode({"alg": "RS256", "kid": "one"}, claims, KEY)


class KafkaPythonTokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, *_: Any) -> None:
        pass

    def token(self) -> str:
        return token()


class AioTokens(AioTokenProvider):  # type: ignore[misc]
    async def token(self) -> str:
        return token()


class Secured(NamedTuple):
    """The listener with TLS."""

    address: str
    authority: Authority


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    return Secured(f"{HOST}:{free_port()}", Authority(tmp_path_factory.mktemp("certificates")))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, secured: Secured) -> Iterator[Serving]:
    """A node with a first user, and nobody else."""
    directory = tmp_path_factory.mktemp("node")
    password, keys = directory / "password", directory / "keys.json"
    password.write_text(f"{ADMIN_PASSWORD}\n")
    password.chmod(0o600)
    keys.write_text(json.dumps(KeySet([KEY]).as_dict(private=False)))
    serving = Serving(directory, *SETTINGS)
    listener = {"listen": serving.kafka, "protocol": "SASL_PLAINTEXT"}
    certificate, key = secured.authority.issue("node")
    with_tls = {"listen": secured.address, "protocol": "SASL_SSL", "certificate": certificate, "key": key}
    serving.settings += (
        f"server.listeners.OUTSIDE={json.dumps(listener)}", "listen=", f"sasl.mechanisms={','.join(MECHANISMS)}",
        "sasl.bootstrap_user=admin", f"sasl.bootstrap_password_file={password}", f"sasl.oauth_jwks={keys}",
        "sasl.oauth_issuer=https://issuer", "sasl.oauth_audiences=mainstem",
        f"server.listeners.SECURED={json.dumps(with_tls)}",
    )  # fmt: skip
    try:
        yield serving.start()
    finally:
        serving.close()


def settings(
    node: Serving, mechanism: str, user: str = "an", password: str = PASSWORD, *, secured: Secured | None = None
) -> dict[str, Any]:
    how = {"bootstrap.servers": node.kafka, "security.protocol": "sasl_plaintext", "sasl.mechanism": mechanism}
    if secured is not None:
        how |= {"bootstrap.servers": secured.address, "security.protocol": "sasl_ssl"}
        how["ssl.ca.location"] = secured.authority.ca
    if mechanism == "OAUTHBEARER":
        return {**how, "oauth_cb": lambda _: (token(), time.time() + 300)}
    return {**how, "sasl.username": user, "sasl.password": password}


@pytest.fixture(scope="module")
def admin(node: Serving) -> AdminClient:
    return AdminClient(settings(node, "SCRAM-SHA-512", "admin", ADMIN_PASSWORD))


@pytest.fixture(scope="module")
def user(admin: AdminClient) -> str:
    """A user with both kinds of credentials."""
    add(admin, "an", PASSWORD)
    return "an"


def add(admin: AdminClient, name: str, password: str) -> None:
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        change = UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), password.encode())
        admin.alter_user_scram_credentials([change])[name].result(PATIENCE_SECONDS)


def librdkafka(node: Serving, mechanism: str, topic: str, secured: Secured | None) -> list[bytes]:
    how = settings(node, mechanism, secured=secured)
    producer = Producer(how)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer({**how, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while len(found) < len(VALUES):
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        assert message.error() is None
        found.append(message.value() or b"")
    consumer.close()
    return found


def kafka_python(node: Serving, mechanism: str, topic: str, secured: Secured | None) -> list[bytes]:
    how: dict[str, Any] = {
        "bootstrap_servers": node.kafka, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism,
        **({"sasl_oauth_token_provider": KafkaPythonTokens()} if mechanism == "OAUTHBEARER" else
           {"sasl_plain_username": "an", "sasl_plain_password": PASSWORD}),
    }  # fmt: skip
    if secured is not None:
        how |= {"bootstrap_servers": secured.address, "security_protocol": "SASL_SSL"}
        how["ssl_cafile"] = secured.authority.ca
    producer = KafkaProducer(**how)
    for sent in [producer.send(topic, value, partition=0) for value in VALUES]:
        sent.get(PATIENCE_SECONDS)
    producer.close()
    consumer = KafkaConsumer(**how, consumer_timeout_ms=PATIENCE_MS)
    consumer.assign([KafkaPythonPartition(topic, 0)])
    consumer.seek_to_beginning()
    found = [next(consumer).value for _ in VALUES]
    consumer.close()
    return found


def aiokafka(node: Serving, mechanism: str, topic: str, secured: Secured | None) -> list[bytes]:
    async def scenario() -> list[bytes]:
        how: dict[str, Any] = {
            "bootstrap_servers": node.kafka, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism,
            **({"sasl_oauth_token_provider": AioTokens()} if mechanism == "OAUTHBEARER" else
               {"sasl_plain_username": "an", "sasl_plain_password": PASSWORD}),
        }  # fmt: skip
        if secured is not None:
            how |= {"bootstrap_servers": secured.address, "security_protocol": "SASL_SSL"}
            how["ssl_context"] = secured.authority.client()
        async with AIOKafkaProducer(**how) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value, partition=0)
        async with AIOKafkaConsumer(topic, **how, auto_offset_reset="earliest") as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    return asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", [librdkafka, kafka_python, aiokafka])
def test_every_client_writes_and_reads(
    node: Serving, user: str, client: Callable[[Serving, str, str, Secured | None], list[bytes]], mechanism: str
) -> None:
    assert client(node, mechanism, f"{client.__name__}-{mechanism}", None) == VALUES


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
@pytest.mark.parametrize("client", [kafka_python, aiokafka])
def test_clients_in_python_write_and_read_over_tls(
    node: Serving,
    user: str,
    client: Callable[[Serving, str, str, Secured | None], list[bytes]],
    mechanism: str,
    secured: Secured,
) -> None:
    assert client(node, mechanism, f"tls-{client.__name__}-{mechanism}", secured) == VALUES


@pytest.fixture
def as_admin(tmp_path: Path) -> str:
    """A file with which the command line is let in."""
    path = tmp_path / "admin.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.username=admin\nsasl.password={ADMIN_PASSWORD}\n"
    )
    path.chmod(0o600)
    return str(path)


def test_the_command_line_makes_lists_and_removes_users(
    node: Serving, as_admin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(command: str, *arguments: str, code: int = 0) -> Any:
        where = ["--bootstrap", node.kafka, "--client-config", as_admin, "--json"]
        assert run(["user", command, *arguments, *where]) == code
        answer = json.loads(capsys.readouterr().out)
        documented = documented_keys()[f"user {command}"]
        assert keys_of(answer, documented) == documented
        return answer

    password = tmp_path / "password"
    password.write_text("from a file\nand no more\n")
    assert told("add", "by hand", "--password-file", str(password), "--iterations", "5000") == {
        "user": "by hand",
        "mechanisms": {"SCRAM-SHA-256": 5000, "SCRAM-SHA-512": 5000},
    }
    client = AdminClient(settings(node, "PLAIN", "by hand", "from a file"))
    assert "by hand" in client.describe_user_scram_credentials().result(PATIENCE_SECONDS)
    assert told("add", "half", "--password-file", str(password), "--mechanism", "SCRAM-SHA-512") == {
        "user": "half",
        "mechanisms": {"SCRAM-SHA-512": 4096},
    }
    listed = {user["user"]: user["mechanisms"] for user in told("list")["users"]}
    assert listed["half"] == {"SCRAM-SHA-512": 4096}
    assert told("remove", "by hand", "nobody", "half", code=1) == {"removed": ["by hand", "half"]}
    listed = {user["user"]: user["mechanisms"] for user in told("list")["users"]}
    assert "half" not in listed
    assert "by hand" not in listed


class Refusal(NamedTuple):
    code: int
    text: str


def refusal(how: dict[str, Any]) -> Refusal:
    """The error of a client that is not let in."""
    failed: list[Refusal] = []
    told = {"error_cb": lambda error: failed.append(Refusal(error.code(), error.str())), "log_level": 0}
    producer = Producer({**how, **told})
    while not any(each.code == KafkaError._AUTHENTICATION for each in failed):
        producer.poll(0.1)
    return next(each for each in failed if each.code == KafkaError._AUTHENTICATION)


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_whatever_is_wrong_clients_hear_the_same(node: Serving, user: str, mechanism: str) -> None:
    wrong = refusal(settings(node, mechanism, "an", "no"))
    unknown = refusal(settings(node, mechanism, "nobody", "no"))
    assert "the credentials were not accepted" in wrong.text
    said = [each.text.split("failed:")[-1].split("(after")[0] for each in (wrong, unknown)]
    assert said[0] == said[1]


def test_a_token_of_somebody_else_is_not_taken(node: Serving) -> None:
    def forged(_: Any) -> tuple[str, float]:
        claims = {"sub": "an", "aud": "mainstem", "iss": "https://issuer", "exp": int(time.time()) + 300}
        other = RSAKey.generate_key(2048, {"kid": "one"})
        return jwt.encode({"alg": "RS256", "kid": "one"}, claims, other), time.time() + 300

    assert "not accepted" in refusal({**settings(node, "OAUTHBEARER"), "oauth_cb": forged}).text


def test_a_mechanism_that_is_not_offered(node: Serving, tmp_path: Path) -> None:
    listener = {"protocol": "SASL_PLAINTEXT", "mechanisms": ["SCRAM-SHA-512"]}
    serving = Serving(tmp_path, *SETTINGS)
    serving.settings += (f"server.listeners.OUTSIDE={json.dumps({'listen': serving.kafka, **listener})}", "listen=")
    try:
        serving.start()
        assert "SCRAM-SHA-512" in refusal(settings(serving, "SCRAM-SHA-256")).text
    finally:
        serving.close()


def test_users_are_described_and_removed(node: Serving, admin: AdminClient) -> None:
    add(admin, "passing", "a")
    described = admin.describe_user_scram_credentials(["passing"])["passing"].result(PATIENCE_SECONDS)
    assert {(info.mechanism, info.iterations) for info in described.scram_credential_infos} == {
        (ScramMechanism.SCRAM_SHA_256, 4096),
        (ScramMechanism.SCRAM_SHA_512, 4096),
    }
    everybody = admin.describe_user_scram_credentials().result(PATIENCE_SECONDS)
    assert {"admin", "passing"} <= set(everybody)
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        change = UserScramCredentialDeletion("passing", mechanism)
        admin.alter_user_scram_credentials([change])["passing"].result(PATIENCE_SECONDS)
    assert "passing" not in admin.describe_user_scram_credentials().result(PATIENCE_SECONDS)
    assert "not accepted" in refusal(settings(node, "SCRAM-SHA-256", "passing", "a")).text


def test_the_node_says_what_each_of_its_listeners_is(node: Serving, secured: Secured, admin: AdminClient) -> None:
    described = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")])
    (configs,) = [future.result(PATIENCE_SECONDS) for future in described.values()]
    both = f"OUTSIDE://{node.kafka},SECURED://{secured.address}"
    assert (configs["listeners"].value, configs["advertised.listeners"].value) == (both, both)
    assert configs["listener.security.protocol.map"].value == "OUTSIDE:SASL_PLAINTEXT,SECURED:SASL_SSL"


def test_a_salt_that_a_client_made_short_is_taken(node: Serving, admin: AdminClient) -> None:
    for mechanism, name in (
        (ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-256"),
        (ScramMechanism.SCRAM_SHA_512, "SCRAM-SHA-512"),
    ):
        change = UserScramCredentialUpsertion("salted", ScramCredentialInfo(mechanism, 4096), b"plum", b"my-salt")
        admin.alter_user_scram_credentials([change])["salted"].result(PATIENCE_SECONDS)
        as_salted = AdminClient(settings(node, name, "salted", "plum"))
        assert as_salted.list_topics(timeout=PATIENCE_SECONDS).brokers


def test_no_password_shows_anywhere(node: Serving, admin: AdminClient, user: str) -> None:
    assert refusal(settings(node, "PLAIN", "an", "a wrong password"))
    said = node.output
    for path in VIEWS:
        with urllib.request.urlopen(f"http://{node.http}{path}", timeout=PATIENCE_SECONDS) as answer:
            said += answer.read().decode()
    asked = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")])
    said += "".join(
        f"{name}={it.value}\n" for one in asked.values() for name, it in one.result(PATIENCE_SECONDS).items()
    )
    assert "listener.security.protocol.map=" in said
    assert "mainstem_authentications_total" in said
    assert "the credentials are wrong" in said
    for secret in (ADMIN_PASSWORD, PASSWORD, "a wrong password"):
        for form in (secret, json.dumps(secret), secret.encode().hex(), base64.b64encode(secret.encode()).decode()):
            assert form not in said


def test_over_tls_a_client_is_whom_it_shows_to_be_by_sasl(tmp_path: Path) -> None:
    """With any certificate."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node")
    shown = authority.issue("somebody")
    password = tmp_path / "password"
    password.write_text(ADMIN_PASSWORD)
    password.chmod(0o600)
    serving = Serving(tmp_path, *SETTINGS)
    listener = {
        "listen": serving.kafka, "protocol": "SASL_SSL", "certificate": certificate, "key": key, "ca": authority.ca,
        "client_auth": "required",
    }  # fmt: skip
    serving.settings += (
        f"server.listeners.OUTSIDE={json.dumps(listener)}", "listen=", "sasl.bootstrap_user=admin",
        f"sasl.bootstrap_password_file={password}", "authorizer.enabled=true", "authorizer.super_users=User:admin",
    )  # fmt: skip
    try:
        serving.start()
        how = {
            **settings(serving, "SCRAM-SHA-512", "admin", ADMIN_PASSWORD), "security.protocol": "sasl_ssl",
            "ssl.ca.location": authority.ca, "ssl.certificate.location": shown[0], "ssl.key.location": shown[1],
        }  # fmt: skip
        admin = AdminClient(how)
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_SECONDS)
        assert "t" in admin.list_topics(timeout=PATIENCE_SECONDS).topics
        assert "not accepted" in refusal({**how, "sasl.password": "no"}).text
    finally:
        serving.close()


def test_rules_are_about_who_clients_are(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(ADMIN_PASSWORD)
    password.chmod(0o600)
    serving = Serving(tmp_path, *SETTINGS)
    listener = {"listen": serving.kafka, "protocol": "SASL_PLAINTEXT"}
    serving.settings += (
        f"server.listeners.OUTSIDE={json.dumps(listener)}", "listen=", "sasl.bootstrap_user=admin",
        f"sasl.bootstrap_password_file={password}", "authorizer.enabled=true", "authorizer.super_users=User:admin",
    )  # fmt: skip
    try:
        serving.start()
        admin = AdminClient(settings(serving, "SCRAM-SHA-512", "admin", ADMIN_PASSWORD))
        add(admin, "an", PASSWORD)
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_SECONDS)
        client = AdminClient(settings(serving, "SCRAM-SHA-256"))
        change = UserScramCredentialUpsertion("mallory", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"x")
        with pytest.raises(KafkaException) as refused:
            client.alter_user_scram_credentials([change])["mallory"].result(PATIENCE_SECONDS)
        assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
        assert "t" not in client.list_topics(timeout=PATIENCE_SECONDS).topics
        rule = AclBinding(
            ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:an", "*", AclOperation.READ,
            AclPermissionType.ALLOW,
        )  # fmt: skip
        admin.create_acls([rule])[rule].result(PATIENCE_SECONDS)
        assert "t" in client.list_topics(timeout=PATIENCE_SECONDS).topics
    finally:
        serving.close()
