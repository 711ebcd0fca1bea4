"""The state machine: replaying its log or its snapshot gives the same state; refusals change nothing."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.model import SLOTS, FeatureLevel, ScramCredential, ScramMechanism
from mainstem.nameserver.errors import (
    InconsistentCommand,
    InvalidConfig,
    InvalidPartitions,
    InvalidPlacement,
    InvalidReplicationFactor,
    InvalidTopicName,
    NameserverError,
    NodeWasRemoved,
    TopicExists,
    UnknownTopic,
)
from mainstem.nameserver.state import node_table, topic_table
from mainstem.nameserver.state.commands import (
    AddPartitions,
    AdvanceCounters,
    AllocateProducerIds,
    ChangeTopicConfigs,
    Command,
    CreateCluster,
    CreateTopic,
    DeleteTopic,
    PartitionsAdded,
    PlaceWriteGroups,
    PreferLeader,
    RaiseFeatureLevel,
    RegisterNode,
    RemoveNode,
    RemoveScramCredential,
    SetDraining,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
    decode_command,
    encode_command,
)
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.scram_table import set_command
from mainstem.nameserver.state.state import MetadataState

CLUSTER = CreateCluster("c" * 22, 4, [slot % 4 for slot in range(SLOTS)])
NODE = RegisterNode(1, "127.0.0.1", 9092, "rack a")


def replayed(commands: Iterable[Command]) -> MetadataState:
    state = MetadataState(TopicDefaults())
    for command in commands:
        state.apply(decode_command(encode_command(command)))
    return state


def image(state: MetadataState) -> tuple[object, ...]:
    """Everything that can be seen of a state."""
    topics = sorted(state.topics.values(), key=lambda topic: topic.number)
    for topic in topics:
        assert state.topic_by_id(topic.topic_id) is state.topic(topic.name) is topic
        assert state.topic_by_number(topic.number) is topic
    assert state.partitions_total == sum(topic.partitions for topic in topics)
    counters = state.next_topic_number, state.next_producer_id
    users = {user: set(kept) for user, kept in state.scram_table.users.items()}
    return state.cluster, tuple(state.nodes), tuple(topics), counters, users, state.scram_table.absent_users_secret


def new_topic(state: MetadataState, name: str, **changes: object) -> CreateTopic:
    values: dict[str, object] = {
        "name": name,
        "number": state.next_topic_number,
        "topic_id": uuid.UUID(int=state.next_topic_number),
        "partitions": 3,
        "replication_factor": 1,
    }
    return CreateTopic(**{**values, **changes})  # type: ignore[arg-type]


def random_command(state: MetadataState, randomness: random.Random) -> Command:
    """Some command, legal or not, about a few topics."""
    number = randomness.randint(0, state.next_topic_number)
    match randomness.randrange(9):
        case 0 | 1:
            name = randomness.choice(["a", "b.c", "b_c", "d", "", "e f", "z" * 249])
            configs = randomness.choice([{}, {"retention.ms": "5"}, {"retention.ms": "x"}, {"no": "1"}])
            return new_topic(state, name, partitions=randomness.randint(0, 9), configs=configs)
        case 2:
            return AddPartitions(number, randomness.randint(0, 20))
        case 3:
            key = randomness.choice(["retention.ms", "cleanup.policy", "nonsense"])
            return ChangeTopicConfigs(number, {key: randomness.choice([None, "1", "compact"])})
        case 4:
            return DeleteTopic(number)
        case 5:
            return RaiseFeatureLevel(FeatureLevel.SECURED)
        case 6 | 7:
            user, mechanism = randomness.choice(["an", "bo", "", "x" * 300]), randomness.choice([*ScramMechanism])
            if randomness.random() < 0.4:
                return RemoveScramCredential(user, mechanism)
            keys = [randomness.randbytes(mechanism.key_bytes) for _ in range(2)]
            iterations = randomness.choice([4095, 4096, 16_384, 16_385])
            return set_command(user, ScramCredential(mechanism, b"salt" * 4, iterations, *keys), b"a secret")
        case _:
            return AllocateProducerIds(1, state.next_producer_id, 1000)


@given(st.integers(0, 2**32), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_replaying_log_or_snapshot_gives_the_same_state(seed: int, length: int) -> None:
    randomness = random.Random(seed)
    logged: list[Command] = [CLUSTER, NODE]
    state = replayed(logged)
    numbers_given: set[int] = set()
    for _ in range(length):
        command = random_command(state, randomness)
        before = image(state)
        try:
            state.check(command)
        except NameserverError:
            assert image(state) == before
            continue
        state.apply(command)
        logged.append(command)
        if isinstance(command, CreateTopic):
            assert command.number not in numbers_given
            numbers_given.add(command.number)
    assert image(replayed(logged)) == image(state)
    snapshot = replayed(state.commands())
    assert image(snapshot) == image(state)
    for number in numbers_given:
        assert snapshot.was_deleted(number) == (state.topic_by_number(number) is None)


@pytest.fixture
def state() -> MetadataState:
    return replayed([CLUSTER, NODE])


def test_the_life_of_a_topic(state: MetadataState) -> None:
    created = state.apply(new_topic(state, "a", configs={"retention.ms": "5"}))
    assert isinstance(created, TopicCreated)
    assert (created.topic.number, created.topic.settings.retention_ms) == (1, 5)
    grown = state.apply(AddPartitions(1, 7))
    assert isinstance(grown, PartitionsAdded)
    assert (grown.first, grown.topic.partitions) == (3, 7)
    changed = state.apply(ChangeTopicConfigs(1, {"retention.ms": None, "cleanup.policy": "compact"}))
    assert isinstance(changed, TopicConfigsChanged)
    assert changed.topic.configs == {"cleanup.policy": "compact"}
    assert changed.topic.settings.retention_ms == 604_800_000
    assert changed.before == grown.topic
    deleted = state.apply(DeleteTopic(1))
    assert deleted == TopicDeleted(changed.topic)
    assert state.topic("a") is None
    assert state.next_topic_number == 2


def test_deleted_is_told_apart_from_never_heard_of(state: MetadataState) -> None:
    state.apply(new_topic(state, "a"))
    state.apply(new_topic(state, "b"))
    state.apply(DeleteTopic(1))
    assert [state.was_deleted(number) for number in range(5)] == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": "taken"}, TopicExists),
        ({"name": "like_this"}, InvalidTopicName),
        ({"name": "no/slash"}, InvalidTopicName),
        ({"partitions": 0}, InvalidPartitions),
        ({"partitions": 100_001}, InvalidPartitions),
        ({"replication_factor": 0}, InvalidReplicationFactor),
        ({"replication_factor": 2}, InvalidReplicationFactor),
        ({"configs": {"retention.ms": "x"}}, InvalidConfig),
    ],
)
def test_refused_topics(state: MetadataState, change: dict[str, object], error: type[Exception]) -> None:
    state.apply(new_topic(state, "taken"))
    state.apply(new_topic(state, "like.this"))
    before = image(state)
    with pytest.raises(error):
        state.check(new_topic(state, **{"name": "new", **change}))  # type: ignore[arg-type]
    assert image(state) == before


def test_a_topic_cannot_ask_for_more_copies_than_the_write_groups_keep(state: MetadataState) -> None:
    for node_id in (2, 3):
        state.apply(msgspec.structs.replace(NODE, node_id=node_id))
    state.check(new_topic(state, "early", replication_factor=3))
    assert state.cluster is not None
    state.apply(PlaceWriteGroups([[1, 2] for _ in range(state.cluster.write_groups)]))
    for factor in (1, 2):
        state.check(new_topic(state, "kept", replication_factor=factor))
    with pytest.raises(InvalidReplicationFactor, match=r"'wide': replication factor 3, .* keep 2 copies"):
        state.check(new_topic(state, "wide", replication_factor=3))
    with pytest.raises(InvalidReplicationFactor, match="1 to 3, the number of nodes"):
        state.check(new_topic(state, "wider", replication_factor=4))
    state.check(new_topic(state, "__internal", replication_factor=3, internal=True))  # as its maker's settings have it


def test_refused_growth(state: MetadataState) -> None:
    state.apply(new_topic(state, "a"))
    for total in (-1, 0, 2, 3, 100_001):
        with pytest.raises(InvalidPartitions):
            state.check(AddPartitions(1, total))
    with pytest.raises(UnknownTopic):
        state.check(AddPartitions(9, 10))


def test_the_cluster_takes_a_bounded_number_of_partitions(state: MetadataState) -> None:
    for index in range(10):
        state.apply(new_topic(state, f"t{index}", partitions=100_000))
    assert state.partitions_total == topic_table.PARTITIONS_TOTAL_MAX
    with pytest.raises(InvalidPartitions, match="1000001 in the cluster"):
        state.check(new_topic(state, "more", partitions=1))
    state.apply(DeleteTopic(1))
    state.check(new_topic(state, "more", partitions=1))


@pytest.mark.parametrize(
    "command",
    [
        CLUSTER,
        CreateTopic("a", 9, uuid.UUID(int=9), 1, 1),
        CreateTopic("b", 1, uuid.UUID(int=9), 1, 1),
        CreateTopic("b", 9, uuid.UUID(int=1), 1, 1),
        AddPartitions(7, 10),
        ChangeTopicConfigs(7, {}),
        DeleteTopic(7),
        AllocateProducerIds(1, 5, 1000),
        AdvanceCounters(1, 0),
    ],
)
def test_a_command_that_cannot_follow_changes_nothing(state: MetadataState, command: Command) -> None:
    state.apply(new_topic(state, "a"))
    before = image(state)
    with pytest.raises(InconsistentCommand):
        state.apply(command)
    assert image(state) == before


def test_nothing_comes_before_the_cluster() -> None:
    with pytest.raises(InconsistentCommand):
        replayed([NODE])


def test_topics_without_configs_share_their_settings(state: MetadataState) -> None:
    for index in range(1000):
        state.apply(new_topic(state, f"t{index}"))
    assert len({id(topic.settings) for topic in state.topics.values()}) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02" + encode_command(NODE)[1:],
        encode_command(NODE)[:-1],
        encode_command(NODE) + b"x",
        b"\x01\x80",
        encode_command(NODE).replace(b"register_node", b"registre_node"),
        encode_command(NODE).replace(b"rack", b"reck"),
    ],
)
def test_what_is_no_command_of_this_version_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"command"):
        decode_command(data)


def test_ids_of_removed_nodes_outlive_snapshots_and_the_first_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_table, "REMOVED_MAX", 3)
    state = replayed([CLUSTER, RaiseFeatureLevel(FeatureLevel.ELASTIC)])
    for node_id in (4, 9, 2, 7):
        state.apply(RegisterNode(node_id, "127.0.0.1", 9092, None))
        with pytest.raises(InvalidPlacement, match=f"node {node_id} is not drained"):
            state.check(RemoveNode(node_id))
        state.apply(SetDraining(node_id, draining=True))
        state.check(RemoveNode(node_id))
        state.apply(RemoveNode(node_id))
    for one in (state, replayed(state.commands())):
        assert list(one.node_table.removed) == [9, 2, 7]
        assert not one.nodes
        assert not one.node_table.draining
        one.check(RegisterNode(4, "127.0.0.1", 9092, None))
        with pytest.raises(NodeWasRemoved, match="node 9 was removed"):
            one.check(RegisterNode(9, "127.0.0.1", 9092, None))


def test_a_preferred_leader_is_one_of_the_replicas_and_not_drained() -> None:
    level = RaiseFeatureLevel(FeatureLevel.ELASTIC)
    nodes = [RegisterNode(node_id, "127.0.0.1", 9092, None) for node_id in (1, 2, 3)]
    placed = PlaceWriteGroups([[1, 2, 3]] * CLUSTER.write_groups)
    state = replayed([CLUSTER, level, *nodes, placed, SetDraining(3, draining=True)])
    with pytest.raises(InvalidPlacement, match="no replica on node 4"):
        state.check(PreferLeader(0, 4))
    with pytest.raises(InvalidPlacement, match="no replica on node 1"):
        state.check(PreferLeader(99, 1))
    with pytest.raises(InvalidPlacement, match="node 3 is drained"):
        state.check(PreferLeader(0, 3))
    state.check(PreferLeader(0, 2))
    state.apply(PreferLeader(0, 2))
    for one in (state, replayed(state.commands())):
        assert one.placements[0] == (2, 1, 3)
    with pytest.raises(NameserverError, match="feature level"):
        replayed([CLUSTER, RaiseFeatureLevel(FeatureLevel.TENANTED), *nodes, placed]).check(PreferLeader(0, 2))


def test_a_node_is_not_removed_below_the_feature_level_that_knows_of_it() -> None:
    state = replayed([CLUSTER, RaiseFeatureLevel(FeatureLevel.TENANTED), NODE])
    with pytest.raises(NameserverError, match="feature level"):
        state.check(RemoveNode(1))
