"""UpdateFeatures, UnregisterBroker, AlterReplicaLogDirs and the requests about voters, against fakes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.broker.admin.admin_broker import AdminBroker, versions_of
from tests.fakes.cluster_admin import FakeClusterAdmin

from mainstem.broker.broker import LogDir, NodeFacts
from mainstem.broker.features import FEATURES, LEVEL
from mainstem.broker.handlers import (
    alter_replica_log_dirs,
    api_versions,
    raft_voters,
    unregister_broker,
    update_features,
)
from mainstem.model import FeatureLevel, Node
from mainstem.nameserver.errors import FeatureLevelNotReady, InvalidPlacement, MetadataUnavailable
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from mainstem.protocol.messages.api_versions import ApiVersionsRequest
from mainstem.protocol.messages.raft_voters import AddRaftVoterRequest, RemoveRaftVoterRequest
from mainstem.protocol.messages.unregister_broker import UnregisterBrokerRequest
from mainstem.protocol.messages.update_features import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)

NEWEST = FeatureLevel.newest()


def cluster(level: FeatureLevel = FeatureLevel.FIRST) -> tuple[AdminBroker, FakeClusterAdmin]:
    admin, changes = AdminBroker(), FakeClusterAdmin(level)
    admin.broker.cluster_admin = changes
    return admin, changes


def updated(admin: AdminBroker, *wanted: tuple[str, int], version: int | None = None, **options: Any) -> Any:
    kind = options.pop("kind", UPGRADE)
    updates = tuple(
        FeatureUpdateKey(feature=name, max_version_level=level)
        if version == 0
        else FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
        for name, level in wanted
    )
    return admin.ask(update_features.handle, UpdateFeaturesRequest(feature_updates=updates, **options), version)


@pytest.mark.parametrize("version", versions_of(UpdateFeaturesRequest))
def test_a_feature_takes_the_cluster_to_the_lowest_level_that_has_it(version: int) -> None:
    admin, changes = cluster()
    answer = updated(admin, ("metadata.version", 30), ("group.version", 1), version=version)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    assert changes.feature_level == FEATURES["metadata.version"].level_of(30)
    named = [(it.feature, it.error_code) for it in answer.results]
    assert named == ([] if version == 2 else [("metadata.version", 0), ("group.version", 0)])


def test_the_level_itself_is_a_feature_and_nothing_is_changed_to_validate() -> None:
    admin, changes = cluster()
    assert updated(admin, (LEVEL, NEWEST), validate_only=True).error_code == ErrorCode.NONE
    assert changes.feature_level == FeatureLevel.FIRST
    assert updated(admin, (LEVEL, NEWEST)).error_code == ErrorCode.NONE
    assert changes.feature_level == NEWEST
    assert updated(admin, (LEVEL, NEWEST)).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("name", "version", "kind"),
    [
        ("no.such.feature", 1, UPGRADE),
        (LEVEL, NEWEST + 1, UPGRADE),
        (LEVEL, -1, UPGRADE),
        (LEVEL, FeatureLevel.FIRST, UPGRADE),
        (LEVEL, FeatureLevel.FIRST, SAFE_DOWNGRADE),
        (LEVEL, NEWEST, SAFE_DOWNGRADE),
        (LEVEL, NEWEST, 0),
        ("metadata.version", 26, UPGRADE),
        ("group.version", 0, SAFE_DOWNGRADE),
    ],
)
def test_updates_that_cannot_be_made_change_nothing(name: str, version: int, kind: int) -> None:
    admin, changes = cluster(FeatureLevel.HARDENED)
    answer = updated(admin, ("eligible.leader.replicas.version", 1), (name, version), kind=kind)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message
    assert changes.feature_level == FeatureLevel.HARDENED


KINDS_OF_UPDATE = [
    (version, kind, validate_only)
    for version in versions_of(UpdateFeaturesRequest)
    for kind in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE)
    for validate_only in (False, True)
    if version > 0 or (kind != UNSAFE_DOWNGRADE and not validate_only)
]
"""Version 0 has no dry run, and one kind of downgrade."""


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize(("version", "kind", "validate_only"), KINDS_OF_UPDATE)
def test_nothing_goes_down_by_whatever_kind_of_update(version: int, kind: int, validate_only: bool, name: str) -> None:
    """Nor does anything go up that is asked to go down. A version that is there already may be asked for in any way, as
    of Kafka."""
    admin, changes = cluster(FeatureLevel.TRANSACTIONAL)
    feature = FEATURES[name]
    present = feature.at(FeatureLevel.TRANSACTIONAL)

    def asked(wanted: int) -> ErrorCode:
        update = (
            FeatureUpdateKey(feature=name, max_version_level=wanted, allow_downgrade=kind != UPGRADE)
            if version == 0
            else FeatureUpdateKey(feature=name, max_version_level=wanted, upgrade_type=kind)
        )
        request = UpdateFeaturesRequest(feature_updates=(update,), validate_only=validate_only)
        return ErrorCode(admin.ask(update_features.handle, request, version).error_code)

    assert asked(present) == ErrorCode.NONE
    for older in {feature.oldest, present - 1, 0} - {present}:
        assert asked(older) == ErrorCode.INVALID_UPDATE_VERSION
    if feature.newest > present and kind != UPGRADE:
        assert asked(feature.newest) == ErrorCode.INVALID_UPDATE_VERSION
    assert changes.feature_level == FeatureLevel.TRANSACTIONAL
    if feature.newest > present and kind == UPGRADE:
        assert asked(feature.newest) == ErrorCode.NONE
        assert changes.feature_level == (FeatureLevel.TRANSACTIONAL if validate_only else NEWEST)


def test_a_dry_run_hears_what_the_cluster_would_refuse() -> None:
    admin, changes = cluster()
    changes.refuse = FeatureLevelNotReady("node 2 reads up to 7")
    answer = updated(admin, (LEVEL, NEWEST), validate_only=True)
    assert (answer.error_code, answer.error_message) == (ErrorCode.FEATURE_UPDATE_FAILED, "node 2 reads up to 7")


KAFKA_4_3 = {
    "metadata.version": 30, "kraft.version": 1, "transaction.version": 2, "group.version": 1,
    "eligible.leader.replicas.version": 1, "share.version": 1, "streams.version": 1,
}  # fmt: skip
"""As `kafka-features version-mapping --release-version 4.3` of Kafka 4.3.1 says."""


def test_the_features_of_a_release_of_kafkas_can_be_asked_for_together() -> None:
    """By `kafka-features upgrade --release-version 4.3`."""
    admin, changes = cluster()
    assert updated(admin, *KAFKA_4_3.items()).error_code == ErrorCode.NONE
    assert {name: FEATURES[name].at(changes.feature_level) for name in KAFKA_4_3} == KAFKA_4_3


def test_a_feature_is_named_once() -> None:
    admin, _ = cluster()
    assert updated(admin, (LEVEL, 2), (LEVEL, 3)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (FeatureLevelNotReady("node 2 reads up to 7"), ErrorCode.FEATURE_UPDATE_FAILED),
        (MetadataUnavailable("no leader"), ErrorCode.NOT_CONTROLLER),
    ],
)
def test_a_refusal_of_the_cluster_is_told(refusal: Any, error: ErrorCode) -> None:
    admin, changes = cluster()
    changes.refuse = refusal
    answer = updated(admin, (LEVEL, NEWEST))
    assert (answer.error_code, answer.error_message) == (error, str(refusal))


@pytest.mark.parametrize("version", [3, 4])
def test_api_versions_tells_of_features(version: int) -> None:
    admin, changes = cluster(FeatureLevel.HARDENED)

    async def handle(broker: Any, request: Any, call: Any) -> Any:
        return await api_versions.handle(API_MESSAGES.values, broker, request, call)

    request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    answer = admin.ask(handle, request, version)
    finalized = {it.name: (it.min_version_level, it.max_version_level) for it in answer.finalized_features}
    assert finalized[LEVEL] == (2, 2)
    assert finalized["metadata.version"] == (25, 25)
    assert finalized["group.version"] == (1, 1)
    assert answer.finalized_features_epoch == changes.version
    supported = {it.name: (it.min_version, it.max_version) for it in answer.supported_features}
    assert supported[LEVEL] == (1, NEWEST)
    assert ("group.version" in supported) == (version == 4), "clients of older versions fail at a 0"
    assert all(first > 0 for first, _ in supported.values()) or version == 4


def test_versions_of_features_go_up_with_the_level() -> None:
    for feature in FEATURES.values():
        versions = [feature.at(level) for level in FeatureLevel]
        assert versions == sorted(versions)
        assert versions[-1] == feature.newest >= feature.oldest
        for version in versions:
            level = feature.level_of(version)
            assert version == 0 or (level is not None and feature.at(level) == version)


def test_a_node_is_unregistered_or_kept_with_the_reason() -> None:
    admin, changes = cluster()
    admin.metadata.nodes_known.append(Node(node_id=2, host="two", port=9092))

    def unregistered(node_id: int) -> Any:
        return admin.ask(unregister_broker.handle, UnregisterBrokerRequest(broker_id=node_id))

    assert unregistered(3).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert changes.removed == []
    assert unregistered(2).error_code == ErrorCode.NONE
    assert changes.removed == [2]
    changes.refuse = InvalidPlacement("node 2 is not drained")
    answer = unregistered(2)
    assert (answer.error_code, answer.error_message) == (ErrorCode.POLICY_VIOLATION, "node 2 is not drained")


def test_where_nobody_changes_the_cluster() -> None:
    admin = AdminBroker()
    assert updated(admin, (LEVEL, 2)).error_code == ErrorCode.NOT_CONTROLLER
    answer = admin.ask(unregister_broker.handle, UnregisterBrokerRequest(broker_id=1))
    assert answer.error_code == ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize("version", versions_of(AlterReplicaLogDirsRequest))
def test_replicas_lie_in_both_directories_of_their_node_and_in_no_other(version: int) -> None:
    admin = AdminBroker(NodeFacts(write_dir=LogDir("/one"), store_dir=LogDir("/two")))
    admin.create("a", 2)

    def moved(path: str, name: str, *partitions: int) -> list[int]:
        topic = AlterReplicaLogDirTopic(name=name, partitions=partitions)
        request = AlterReplicaLogDirsRequest(dirs=(AlterReplicaLogDir(path=path, topics=(topic,)),))
        (result,) = admin.ask(alter_replica_log_dirs.handle, request, version).results
        assert result.topic_name == name
        assert [it.partition_index for it in result.partitions] == list(partitions)
        return [it.error_code for it in result.partitions]

    assert moved("/one", "a", 0, 1) == moved("/two", "a", 0, 1) == [ErrorCode.NONE] * 2
    assert moved("/one", "a", 2, -1) == [ErrorCode.REPLICA_NOT_AVAILABLE] * 2
    assert moved("/one", "nowhere", 0) == [ErrorCode.REPLICA_NOT_AVAILABLE]
    assert moved("/three", "a", 0) == [ErrorCode.LOG_DIR_NOT_FOUND]


@pytest.mark.parametrize("version", versions_of(AddRaftVoterRequest))
def test_voters_do_not_change_by_kafkas_requests(version: int) -> None:
    admin = AdminBroker()
    one = UUID(int=1)

    def asked(cluster_id: str | None) -> list[int]:
        add = AddRaftVoterRequest(cluster_id=cluster_id, timeout_ms=1, voter_id=2, voter_directory_id=one, listeners=())
        remove = RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=2, voter_directory_id=one)
        answers: list[Any] = [admin.ask(raft_voters.add, add, version), admin.ask(raft_voters.remove, remove)]
        assert all(answer.error_message for answer in answers)
        return [answer.error_code for answer in answers]

    assert asked(None) == asked("fake-cluster") == [ErrorCode.UNSUPPORTED_VERSION] * 2
    assert asked("another") == [ErrorCode.INCONSISTENT_CLUSTER_ID] * 2
