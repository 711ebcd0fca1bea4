"""Access rules × principals × APIs, asked of Apache Kafka with its StandardAuthorizer and of Mainstem.

    python -m bench.access.acl_matrix --sets 100 --seed 1

Each set is a handful of random rules, which both nodes get; then two users, neither of them a super user, ask all
questions of `acl_questions.py` over SASL_SSL. A case is one question of one user under one set; what the nodes answer
must be the same. Prints each difference with the rules of its set, and the count of cases. Ends with 1 if there is a
difference.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from bench.access.acl_questions import commit, compared, questions, told
from bench.access.newer_questions import as_kafka_writes
from bench.access.question import ABSENT, RULED, TOPICS
from bench.access.token_questions import OWNERS, Token, made_for
from bench.nodes.timed_node import Wire, create
from bench.systems import all_systems
from bench.systems.guard import Guard
from bench.systems.system import Durability, Node, Setup
from mainstem.cli.clients.sasl import Login
from mainstem.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
)
from mainstem.protocol.messages.group_membership import FindCoordinatorRequest
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.protocol.messages.share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
    DescribeShareOffsetsTopic,
)
from mainstem.security.acls.acl import (
    ANY_PRINCIPAL,
    CLUSTER_NAME,
    OPERATIONS_OF,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
)

CACHE = Path.home() / ".cache" / "mainstem-bench"
USERS = ("alice", "bob")
PASSWORD = "the password of both"
HOSTS = ("*", "*", "127.0.0.1", "10.1.2.3")
MECHANISM = "SCRAM-SHA-512"
RULES_MAX = 6
ACLS_VERSION = 3
COMMIT_VERSION = 8
FIND_VERSION, SHARE_FIND_VERSION = 4, 6
DESCRIBE_SHARE_VERSION = 1
TOKENS_VERSION = 3
ANSWER_SECONDS_MAX = 30.0
SETTLING_SECONDS_MAX = 30.0
SHOWN_MAX = 40
"""Differences that are printed in full."""
SUPER = "admin"
LAST = f"User:{USERS[0]}"
METADATA_VERSION = 9
ID_VERSION = 12
UNKNOWN_TOPIC = 3
LOADING = ".error_code=14"
"""Kafka's answer to InitProducerId while it has no block of ids yet."""


def rules_of(choose: random.Random) -> list[Acl]:
    """A set: more rules that allow than that deny, most about topics and groups."""
    kinds = (
        ResourceKind.TOPIC,
        ResourceKind.TOPIC,
        ResourceKind.GROUP,
        ResourceKind.CLUSTER,
        ResourceKind.TRANSACTIONAL_ID,
        ResourceKind.DELEGATION_TOKEN,
        ResourceKind.USER,
    )
    found = []
    for _ in range(choose.randint(1, RULES_MAX)):
        kind = choose.choice(kinds)
        of_cluster = kind is ResourceKind.CLUSTER
        pattern = PatternType.LITERAL if of_cluster else choose.choice((PatternType.LITERAL, PatternType.PREFIXED))
        found.append(Acl(
            kind, choose.choice(_names(kind)), pattern,
            choose.choice((*(f"User:{user}" for user in USERS), ANY_PRINCIPAL)), choose.choice(HOSTS),
            choose.choice((Operation.ALL, *OPERATIONS_OF[kind])),
            choose.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
        ))  # fmt: skip
    return found


def _names(kind: ResourceKind) -> Sequence[str]:
    """Names that rules of a kind are about. A token is named by its owner: each node has its own ids."""
    match kind:
        case ResourceKind.CLUSTER:
            return (CLUSTER_NAME,)
        case ResourceKind.DELEGATION_TOKEN:
            return (*OWNERS, "*")
        case ResourceKind.USER:
            return (*(f"User:{owner}" for owner in OWNERS), "User:", "*")
        case _:
            return RULED


class Asked:
    """A node and the connections to it: that of a super user and those of the users who ask."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._super = self._connected(SUPER, self._guard.password)
        self._users: dict[str, Wire] = {}
        self._ids: dict[str, UUID] = {}
        self._tokens: dict[str, Token] = {}
        self._sets = 0

    @property
    def _guard(self) -> Guard:
        assert self._node.setup.guard is not None
        return self._node.setup.guard

    def _connected(self, user: str, password: str) -> Wire:
        assert self._node.guarded is not None
        wire = Wire(self._node.guarded, ANSWER_SECONDS_MAX, tls=self._guard.client_context())
        Login(MECHANISM, user, password).authenticate(wire.call)
        return wire

    def prepare(self) -> None:
        """Topics, committed offsets, users, tokens."""
        for topic in TOPICS:
            create(self._super, topic)
        self._settled(self._topics_are_there)
        self._settled(self._coordinators_are_there)
        for group in TOPICS:
            self._settled(functools.partial(self._committed, group))
        admin = AdminClient({"bootstrap.servers": self._node.address})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        for user in USERS:
            upsertion = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
            admin.alter_user_scram_credentials([upsertion])[user].result(ANSWER_SECONDS_MAX)
            self._users[user] = self._connected(user, PASSWORD)
        for owner in OWNERS:
            made = self._super.call(made_for(owner), TOKENS_VERSION)
            assert not made.error_code, made
            self._tokens[owner] = Token(made.token_id, made.hmac)

    def _topics_are_there(self) -> bool:
        named = tuple(MetadataRequestTopic(name=topic) for topic in TOPICS)
        answer = self._super.call(MetadataRequest(topics=named, allow_auto_topic_creation=False), ID_VERSION)
        self._ids = {topic.name: topic.topic_id for topic in answer.topics}
        return not any(topic.error_code for topic in answer.topics)

    def _coordinators_are_there(self) -> bool:
        """Those of transactions and share groups, whose topics are made when they are first asked for."""
        share = f"{ABSENT}:{as_kafka_writes(self._ids[TOPICS[0]])}:0"
        described = self._super.call(DescribeShareGroupOffsetsRequest(groups=(DescribeShareOffsetsGroup(
            group_id=ABSENT, topics=(DescribeShareOffsetsTopic(topic_name=TOPICS[0], partitions=(0,)),)),)),
            DESCRIBE_SHARE_VERSION)  # fmt: skip
        return not described.groups[0].error_code and not any(
            coordinator.error_code
            for kind, keys in ((1, (*TOPICS, ABSENT)), (2, (share,)))
            for coordinator in self._super.call(
                FindCoordinatorRequest(key_type=kind, coordinator_keys=keys), SHARE_FIND_VERSION
            ).coordinators
        )

    def _committed(self, group: str) -> bool:
        self._super.call(FindCoordinatorRequest(coordinator_keys=(group,)), FIND_VERSION)  # makes the offsets' topic
        answer = self._super.call(commit(group, TOPICS[0]), COMMIT_VERSION)
        return not answer.topics[0].partitions[0].error_code

    def set_rules(self, rules: Sequence[Acl]) -> None:
        """These and no others, in force when it returns: one more rule about a topic that is not there comes behind
        them, and shows that they count."""
        everything = DeleteAclsFilter(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
            host_filter=None, operation=1, permission_type=1,
        )  # fmt: skip
        removed = self._super.call(DeleteAclsRequest(filters=(everything,)), ACLS_VERSION)
        assert not removed.filter_results[0].error_code, removed
        creations = tuple(
            AclCreation(resource_type=rule.kind, resource_name=self._named(rule), resource_pattern_type=rule.pattern,
                        principal=rule.principal, host=rule.host, operation=rule.operation,
                        permission_type=rule.permission)
            for rule in (*rules, self._last_rule())
        )  # fmt: skip
        added = self._super.call(CreateAclsRequest(creations=creations), ACLS_VERSION)
        assert not any(result.error_code for result in added.results), added
        self._settled(self._last_rule_counts)

    def _named(self, rule: Acl) -> str:
        token = self._tokens.get(rule.name) if rule.kind is ResourceKind.DELEGATION_TOKEN else None
        return rule.name if token is None else token.id

    def _last_rule(self) -> Acl:
        self._sets += 1
        literal, describe = PatternType.LITERAL, Operation.DESCRIBE
        return Acl(ResourceKind.TOPIC, f"last-{self._sets}", literal, LAST, "*", describe, Permission.ALLOW)

    def _last_rule_counts(self) -> bool:
        """Whether the node says that the topic is unknown, rather than that it may not be seen."""
        named = (MetadataRequestTopic(name=f"last-{self._sets}"),)
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        answer = self._users[USERS[0]].call(request, METADATA_VERSION)
        return bool(answer.topics[0].error_code == UNKNOWN_TOPIC)

    def _settled(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SETTLING_SECONDS_MAX
        while not done():
            if time.monotonic() > deadline:
                raise SystemExit(f"{self._node.guarded} is not ready after {SETTLING_SECONDS_MAX:.0f} s")
            time.sleep(0.1)

    def _without_ids(self, line: str) -> str:
        """Each node has its own ids of topics."""
        for name, topic_id in self._ids.items():
            line = line.replace(as_kafka_writes(topic_id), f"id of {name}")
        return line

    def answers(self, user: str) -> Mapping[str, list[str]]:
        wire = self._users[user]
        found = {}
        for asked in questions(self._ids, self._tokens):
            try:
                while LOADING in (answer := told(wire.call(asked.message, asked.version))):
                    time.sleep(0.1)
                found[asked.name] = [self._without_ids(line) for line in compared(asked.name, answer)]
            except OSError as error:
                raise SystemExit(
                    f"{self._node.setup.directory.name} does not answer {asked.name} of {user}: {error}"
                ) from None
        return found


def differences(asked: Mapping[str, Asked], rules: Sequence[Acl]) -> tuple[int, list[str]]:
    """How many cases a set made, and those that the two answered differently."""
    cases, found = 0, []
    for user in USERS:
        ours, kafkas = (asked[system].answers(user) for system in ("mainstem", "kafka"))
        for name, answer in kafkas.items():
            cases += 1
            if ours[name] != answer:
                lacking, more = (sorted(set(one) - set(other)) for one, other in
                                 ((answer, ours[name]), (ours[name], answer)))  # fmt: skip
                found.append(f"{user}, {name}: kafka {lacking}, mainstem {more}; rules: {_said(rules)}")
    return cases, found


def _said(rules: Sequence[Acl]) -> str:
    return "; ".join(
        f"{rule.permission.name} {rule.principal} {rule.host} {rule.operation.name} {rule.kind.name} "
        f"{rule.pattern.name} {rule.name}" for rule in rules
    )  # fmt: skip


def compare(nodes: Mapping[str, Node], sets: int, seed: int) -> tuple[int, list[str]]:
    asked = {system: Asked(node) for system, node in nodes.items()}
    for one in asked.values():
        one.prepare()
    choose = random.Random(seed)
    cases, found = 0, []
    for _ in range(sets):
        rules = rules_of(choose)
        for one in asked.values():
            one.set_rules(rules)
        count, more = differences(asked, rules)
        cases += count
        found += more
    return cases, found


def main() -> int:
    parser = argparse.ArgumentParser(description="Access rules, principals and APIs, as Kafka and Mainstem judge them.")
    parser.add_argument("--sets", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    nodes: dict[str, Node] = {}
    with tempfile.TemporaryDirectory(prefix="acl-matrix-") as directory:
        try:
            for name, system in all_systems(CACHE).items():
                system.prepare()
                home = Path(directory) / name
                nodes[name] = system.start(Setup(
                    directory=home, cpus=cpus, cores_count=len(cpus), durability=Durability.ASYNC,
                    guard=Guard(home / "guard", users=True),
                ))  # fmt: skip
            cases, found = compare(nodes, given.sets, given.seed)
        finally:
            for node in nodes.values():
                node.stop()
    for line in found[:SHOWN_MAX]:
        print(line)
    by_api = Counter(line.split(", ", 1)[1].split(":", 1)[0].split(" ", 1)[0] for line in found)
    print(f"{given.sets} sets of rules, {cases} cases, {len(found)} differences {dict(by_api) or ''}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
