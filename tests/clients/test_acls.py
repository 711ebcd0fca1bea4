"""Access rules through other people's clients and our command line, on a real node.

Nobody authenticates here: clients are User:ANONYMOUS, which may do what no rule is about.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern, ResourcePatternFilter
from kafka.admin import ACLResourcePatternType as PythonPattern
from kafka.admin import ResourceType as PythonResource
from tests.cli.documented import documented_keys, keys_of
from tests.clients.conftest import SETTINGS
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

from mainstem.cli.acl.acl_requests import LibraryAclRequests, asked
from mainstem.cli.clients.client_settings import Bootstrap
from mainstem.cli.errors import SettingsUnusable
from mainstem.cli.main import run
from mainstem.security.acls.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceKind

ME = "User:ANONYMOUS"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Shadows the fixture of the other modules."""
    settings = ("authorizer.enabled=true", "authorizer.allow_everyone_if_no_acl_found=true")
    serving = Serving(tmp_path_factory.mktemp("node"), *SETTINGS, *settings, "authorizer.super_users=User:root")
    try:
        yield serving.start()
    finally:
        serving.close()


def binding(
    topic: str, operation: AclOperation, permission: AclPermissionType = AclPermissionType.DENY, principal: str = ME
) -> AclBinding:
    return AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, principal, "*", operation, permission)


def filter_of(rule: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        rule.restype, rule.name, rule.resource_pattern_type, rule.principal, rule.host, rule.operation,
        rule.permission_type,
    )  # fmt: skip


def add(admin: AdminClient, *rules: AclBinding) -> None:
    for future in admin.create_acls(list(rules)).values():
        future.result(PATIENCE_SECONDS)


def remove(admin: AdminClient, *rules: AclBinding) -> None:
    for future in admin.delete_acls([filter_of(rule) for rule in rules]).values():
        future.result(PATIENCE_SECONDS)


def test_librdkafka_adds_shows_and_removes_rules(admin: AdminClient, name: str) -> None:
    read = binding(name, AclOperation.READ, AclPermissionType.ALLOW, "User:alice")
    write = binding(name, AclOperation.WRITE, AclPermissionType.DENY, "User:alice")
    add(admin, read, write)
    add(admin, read)
    of_topic = AclBindingFilter(
        ResourceType.TOPIC, name, ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert set(admin.describe_acls(of_topic).result(PATIENCE_SECONDS)) == {read, write}
    (removed,) = admin.delete_acls([filter_of(read)]).values()
    assert list(removed.result(PATIENCE_SECONDS)) == [read]
    assert list(admin.describe_acls(of_topic).result(PATIENCE_SECONDS)) == [write]
    remove(admin, write)


def test_kafka_python_adds_shows_and_removes_rules(bootstrap: str, name: str) -> None:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        pattern = ResourcePattern(PythonResource.TOPIC, name, PythonPattern.PREFIXED)
        rule = ACL("User:bob", "10.0.0.1", ACLOperation.DESCRIBE, ACLPermissionType.ALLOW, pattern)
        created = client.create_acls([rule])
        assert (created["succeeded"], created["failed"]) == ([rule], [])
        wanted = ACLFilter(
            "User:bob", None, ACLOperation.ANY, ACLPermissionType.ANY,
            ResourcePatternFilter(PythonResource.TOPIC, name + "-more", PythonPattern.MATCH),
        )  # fmt: skip
        found, _ = client.describe_acls(wanted)
        assert found == [rule]
        ((_, removed, _),) = client.delete_acls([wanted])
        assert removed == [rule]
        assert client.describe_acls(wanted)[0] == []
    finally:
        client.close()


def sent(producer: Producer, topic: str) -> KafkaError | None:
    """The error that a message was refused with."""
    told: list[KafkaError | None] = []
    try:
        producer.produce(topic, b"v", on_delivery=lambda error, _: told.append(error))
    except KafkaException as refused:  # the client knows already
        error: KafkaError = refused.args[0]
        return error
    producer.flush(PATIENCE_SECONDS)
    return told[0]


def read_one(consumer: Consumer) -> tuple[int | None, bytes | None]:
    """The error or the value of what comes next."""
    message = consumer.poll(PATIENCE_SECONDS)
    assert message is not None
    error = message.error()
    return (None, message.value()) if error is None else (error.code(), None)


def test_denied_and_allowed_again_on_open_connections(admin: AdminClient, bootstrap: str, name: str) -> None:
    admin.create_topics([NewTopic(name, 1)])[name].result(PATIENCE_SECONDS)
    failed = KafkaError.TOPIC_AUTHORIZATION_FAILED
    asks_often = {"topic.metadata.refresh.interval.ms": 100}  # else it holds a topic for refused for minutes
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **asks_often, **KEEP_TRYING})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": name, **KEEP_TRYING})
    no_writing, no_reading = binding(name, AclOperation.WRITE), binding(name, AclOperation.READ)
    allowed = [
        binding(name, operation, AclPermissionType.ALLOW)
        for operation in (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)
    ]
    try:
        consumer.assign([TopicPartition(name, 0, 0)])
        assert sent(producer, name) is None
        assert read_one(consumer) == (None, b"v")
        add(admin, *allowed, no_writing)
        refusal = sent(producer, name)
        assert refusal is not None
        assert refusal.code() == failed
        add(admin, no_reading)
        remove(admin, no_writing)
        eventually(lambda: sent(producer, name) is None)
        assert read_one(consumer) == (failed, None)
        remove(admin, no_reading)
        eventually(lambda: read_one(consumer) == (None, b"v"))
    finally:
        consumer.close()
        remove(admin, *allowed)


def test_a_topic_without_describe_is_not_listed(admin: AdminClient, name: str) -> None:
    admin.create_topics([NewTopic(name, 1)])[name].result(PATIENCE_SECONDS)
    rule = binding(name, AclOperation.ALL)
    assert name in admin.list_topics(timeout=PATIENCE_SECONDS).topics
    add(admin, rule)
    assert name not in admin.list_topics(timeout=PATIENCE_SECONDS).topics
    with pytest.raises(KafkaException) as refused:
        admin.create_partitions([NewPartitions(name, 2)])[name].result(PATIENCE_SECONDS)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    remove(admin, rule)
    assert name in admin.list_topics(timeout=PATIENCE_SECONDS).topics


# the command line

AskedAcl = Callable[..., Any]


@pytest.fixture
def acl(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> AskedAcl:
    """`acl("list", …)`: the data that the command prints, whose keys are those of the documentation."""

    def asked(command: str, *arguments: str) -> Any:
        assert run(["acl", command, *arguments, "--bootstrap", bootstrap, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        documented = documented_keys()[f"acl {command}"]
        assert keys_of(data, documented) <= documented
        return data

    return asked


def test_the_command_line_adds_lists_and_removes(acl: AskedAcl, name: str) -> None:
    acl("add", "User:carol", "read", "ALTER_CONFIGS", f"topic:{name}")
    acl("add", "User:carol", "all", f"topic:{name[:-2]}", "--prefix", "--deny", "--host", "10.0.0.9")
    acl("add", "User:dave", "describe", f"topic:{name}")

    def listed(*arguments: str) -> list[tuple[str, ...]]:
        return [tuple(rule.values()) for rule in acl("list", *arguments)["rules"]]

    read = ("User:carol", "allow", "read", "topic", name, "literal", "*")
    configs = ("User:carol", "allow", "alter-configs", "topic", name, "literal", "*")
    denied = ("User:carol", "deny", "all", "topic", name[:-2], "prefixed", "10.0.0.9")
    dave = ("User:dave", "allow", "describe", "topic", name, "literal", "*")
    assert sorted(listed(f"topic:{name}")) == sorted([read, configs, denied, dave])
    assert sorted(listed("--principal", "User:carol")) == sorted([read, configs, denied])
    assert len(acl("remove", "User:carol", "read", f"topic:{name}", "--yes")["removed"]) == 1
    assert sorted(listed("--principal", "User:carol")) == sorted([configs, denied])
    assert len(acl("remove", "User:carol", "--yes")["removed"]) == 2
    assert listed(f"topic:{name}") == [dave]
    assert len(acl("remove", "User:dave", "--yes")["removed"]) == 1


def test_the_command_line_knows_users_and_delegation_tokens(acl: AskedAcl) -> None:
    """librdkafka knows neither; the rules stand among the others, and decide."""
    acl("add", "User:gina", "create-tokens", "DESCRIBE_TOKENS", "user:alice")
    acl("add", "User:gina", "describe", "delegation-token:some-id")
    acl("add", "User:gina", "create-tokens", "user:User:team-", "--prefix")
    acl("add", "User:gina", "describe", "topic:gina")

    def listed(*arguments: str) -> set[tuple[str, ...]]:
        rules = acl("list", *arguments, "--principal", "User:gina")["rules"]
        return {(rule["operation"], rule["kind"], rule["name"], rule["pattern"]) for rule in rules}

    alice = {(operation, "user", "User:alice", "literal") for operation in ("create-tokens", "describe-tokens")}
    team = {("create-tokens", "user", "User:team-", "prefixed")}
    token = {("describe", "delegation-token", "some-id", "literal")}
    topic = {("describe", "topic", "gina", "literal")}
    assert listed() == alice | team | token | topic
    assert (listed("user:alice"), listed("user:team-7"), listed("delegation-token:some-id")) == (alice, team, token)
    assert acl("why", "User:gina", "create-tokens", "user:team-7")["rule"]["name"] == "User:team-"
    assert not acl("why", "User:gina", "describe-tokens", "user:team-7")["allowed"]
    assert len(acl("remove", "User:gina", "create-tokens", "user:User:alice", "--yes")["removed"]) == 1
    assert listed("user:alice") == {("describe-tokens", "user", "User:alice", "literal")}
    assert len(acl("remove", "User:gina", "--yes")["removed"]) == 4
    assert listed() == set()


def test_rules_that_a_node_refuses_are_named(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["acl", "add", "gina:", "read", "user:" + "a" * 2_000, "--bootstrap", bootstrap]) == 1
    assert "the rule ALLOW gina: read user:User:aaa" in capsys.readouterr().err.replace("\n", " ")


def test_rules_through_librdkafka(admin: AdminClient, name: str) -> None:
    """The commands ask through it where a login takes it."""
    requests = LibraryAclRequests(admin)
    rules = [
        Acl(ResourceKind.TOPIC, name, PatternType.LITERAL, "User:hank", "*", operation, Permission.ALLOW)
        for operation in (Operation.READ, Operation.WRITE)
    ]
    wanted = AclFilter(ResourceKind.TOPIC, name, PatternType.LITERAL, "User:hank")
    requests.add(rules)
    assert requests.found(wanted) == rules
    requests.remove(rules[:1])
    assert requests.found(wanted) == rules[1:]
    requests.remove(rules[1:])
    assert requests.found(wanted) == []


def test_a_login_of_librdkafka_alone_has_no_rules_about_users(bootstrap: str) -> None:
    address = Bootstrap(bootstrap, {"sasl.mechanisms": "OAUTHBEARER", "security.protocol": "SASL_PLAINTEXT"})
    with pytest.raises(SettingsUnusable, match="OAUTHBEARER"), asked(address, ResourceKind.USER):
        pass


def test_the_command_line_tells_why(acl: AskedAcl, name: str) -> None:
    topic = f"topic:{name}"
    assert acl("why", "User:root", "delete", topic)["reason"] == "User:root is a super user"
    answer = acl("why", "User:erin", "describe", topic)
    assert answer["allowed"]
    assert "no rule about the resource" in answer["reason"]
    acl("add", "User:erin", "read", topic)
    answer = acl("why", "User:erin", "describe", topic)
    assert answer["allowed"]
    assert answer["rule"]["operation"] == "read"
    assert not acl("why", "User:erin", "write", topic)["allowed"]
    acl("add", "User:*", "all", "topic:*", "--deny", "--host", "10.0.0.9")
    assert acl("why", "User:erin", "read", topic)["allowed"]
    answer = acl("why", "User:erin", "read", topic, "--host", "10.0.0.9")
    assert not answer["allowed"]
    assert (answer["rule"]["principal"], answer["rule"]["name"]) == ("User:*", "*")
    acl("remove", "User:*", "--yes")
    acl("remove", "User:erin", "--yes")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "alice", "read", "topic:t"], "User:alice"),
        (["add", "User:alice", "fly", "topic:t"], "'fly' is none of all, read"),
        (["add", "User:alice", "read", "t"], "'t' is none of topic:NAME"),
        (["add", "User:alice", "read", "topic:"], "has no name"),
        (["why", "User:alice", "alter", "cluster:other"], "there is one cluster"),
    ],
)
def test_wrong_usage_of_the_command_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["acl", *arguments]) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")


def test_text_of_the_command_line(bootstrap: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*arguments: str) -> str:
        assert run(["acl", *arguments, "--bootstrap", bootstrap]) == 0
        return capsys.readouterr().out

    added = printed("add", "User:frank", "read", f"group:{name}", "--prefix")
    assert added == f"added ALLOW User:frank read group:{name} (prefix)\n"
    assert "User:frank" in printed("list", f"group:{name}-1")
    told = printed("why", "User:frank", "read", f"group:{name}-1")
    assert told == f"allowed: a rule allows it\nALLOW User:frank read group:{name} (prefix)\n"
    removed = printed("remove", "User:frank", "--yes")
    assert removed == f"removed ALLOW User:frank read group:{name} (prefix)\n"
    assert printed("remove", "User:frank", "--yes") == "no such rule\n"
