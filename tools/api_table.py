"""Keeps the table in docs/api.md: every API that a Kafka broker advertises to clients, and how this program answers it.

`python -m tools.api_table` prints the page as it should be, `--write` writes it. The APIs that are served,
and their versions, come from the routes; why an API is answered in part, or refused, stands here.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mainstem.broker.dispatch.routes import ROUTES

PAGE = Path(__file__).resolve().parents[1] / "docs/api.md"


class KafkaApi(NamedTuple):
    """An API of Kafka's brokers, with the versions that they advertise."""

    key: int
    name: str
    first: int
    last: int


KAFKA = tuple(
    KafkaApi(*row)
    for row in (
        (0, "Produce", 3, 13),
        (1, "Fetch", 4, 18),
        (2, "ListOffsets", 1, 11),
        (3, "Metadata", 0, 13),
        (8, "OffsetCommit", 2, 10),
        (9, "OffsetFetch", 1, 10),
        (10, "FindCoordinator", 0, 6),
        (11, "JoinGroup", 0, 9),
        (12, "Heartbeat", 0, 4),
        (13, "LeaveGroup", 0, 5),
        (14, "SyncGroup", 0, 5),
        (15, "DescribeGroups", 0, 6),
        (16, "ListGroups", 0, 5),
        (17, "SaslHandshake", 0, 1),
        (18, "ApiVersions", 0, 4),
        (19, "CreateTopics", 2, 7),
        (20, "DeleteTopics", 1, 6),
        (21, "DeleteRecords", 0, 2),
        (22, "InitProducerId", 0, 5),
        (23, "OffsetForLeaderEpoch", 2, 4),
        (24, "AddPartitionsToTxn", 0, 5),
        (25, "AddOffsetsToTxn", 0, 4),
        (26, "EndTxn", 0, 5),
        (27, "WriteTxnMarkers", 1, 2),
        (28, "TxnOffsetCommit", 0, 5),
        (29, "DescribeAcls", 1, 3),
        (30, "CreateAcls", 1, 3),
        (31, "DeleteAcls", 1, 3),
        (32, "DescribeConfigs", 1, 4),
        (33, "AlterConfigs", 0, 2),
        (34, "AlterReplicaLogDirs", 1, 2),
        (35, "DescribeLogDirs", 1, 5),
        (36, "SaslAuthenticate", 0, 2),
        (37, "CreatePartitions", 0, 3),
        (38, "CreateDelegationToken", 1, 3),
        (39, "RenewDelegationToken", 1, 2),
        (40, "ExpireDelegationToken", 1, 2),
        (41, "DescribeDelegationToken", 1, 3),
        (42, "DeleteGroups", 0, 2),
        (43, "ElectLeaders", 0, 2),
        (44, "IncrementalAlterConfigs", 0, 1),
        (45, "AlterPartitionReassignments", 0, 1),
        (46, "ListPartitionReassignments", 0, 0),
        (47, "OffsetDelete", 0, 0),
        (48, "DescribeClientQuotas", 0, 1),
        (49, "AlterClientQuotas", 0, 1),
        (50, "DescribeUserScramCredentials", 0, 0),
        (51, "AlterUserScramCredentials", 0, 0),
        (55, "DescribeQuorum", 0, 2),
        (57, "UpdateFeatures", 0, 2),
        (60, "DescribeCluster", 0, 2),
        (61, "DescribeProducers", 0, 0),
        (64, "UnregisterBroker", 0, 0),
        (65, "DescribeTransactions", 0, 0),
        (66, "ListTransactions", 0, 2),
        (68, "ConsumerGroupHeartbeat", 0, 1),
        (69, "ConsumerGroupDescribe", 0, 1),
        (71, "GetTelemetrySubscriptions", 0, 0),
        (72, "PushTelemetry", 0, 0),
        (74, "ListConfigResources", 0, 1),
        (75, "DescribeTopicPartitions", 0, 0),
        (76, "ShareGroupHeartbeat", 1, 1),
        (77, "ShareGroupDescribe", 1, 1),
        (78, "ShareFetch", 1, 2),
        (79, "ShareAcknowledge", 1, 2),
        (80, "AddRaftVoter", 0, 1),
        (81, "RemoveRaftVoter", 0, 0),
        (83, "InitializeShareGroupState", 0, 0),
        (84, "ReadShareGroupState", 0, 0),
        (85, "WriteShareGroupState", 0, 1),
        (86, "DeleteShareGroupState", 0, 0),
        (87, "ReadShareGroupStateSummary", 0, 1),
        (88, "StreamsGroupHeartbeat", 0, 0),
        (89, "StreamsGroupDescribe", 0, 0),
        (90, "DescribeShareGroupOffsets", 0, 1),
        (91, "AlterShareGroupOffsets", 0, 0),
        (92, "DeleteShareGroupOffsets", 0, 0),
    )
)
"""Those of Kafka 4.3.1, for clients."""

PARTLY: Mapping[int, str] = {
    33: "a broker's configs that are read at its start are refused (`INVALID_REQUEST`, with the reason); "
    "[those without an effect](operations.md#settings-that-change-while-a-node-runs) are kept",
    34: "a replica lies in both directories of its node: naming one of them changes nothing, any other is "
    "`LOG_DIR_NOT_FOUND`",
    43: "unclean elections are refused: write groups elect nobody who lacks what was acknowledged",
    44: "as AlterConfigs",
    57: "versions go up, never down (`INVALID_UPDATE_VERSION`): the "
    "[feature level](decisions/0144-features-follow-from-the-feature-level.md) does not either. Kafka 4.3 refuses so "
    "to take `metadata.version` back, and takes back `transaction.version` and `share.version`",
    45: "a partition [moves to a write group](operations.md#moving-queues-between-write-groups) on these nodes; "
    "where there is none, `INVALID_REPLICA_ASSIGNMENT` names those there are "
    "([why](decisions/0199-a-reassignment-is-a-move-to-a-write-group.md))",
    64: "a node that is drained and dead, as `mainstem cluster remove`; any other is kept (`POLICY_VIOLATION`)",
}
"""APIs that are answered otherwise than in Kafka, or for some requests only."""

REFUSED: Mapping[int, str] = {
    80: "`UNSUPPORTED_VERSION`, as a Kafka cluster whose voters are fixed: `mainstem cluster replace` hands a vote on",
    81: "the same",
}
"""APIs that are answered with an error whatever is asked for."""

MISSING: Mapping[int, str] = {}
"""More about APIs that are not answered."""

HEAD = """# Kafka's APIs

All APIs that a broker of Kafka 4.3.1 advertises to clients, with its versions, and how a node answers them. ApiVersions
advertises those that are served or refused, and no others: a request of any other closes the connection. Behind
[access rules](security.md#authorization) each takes what it takes in Kafka. As in Kafka, Produce is advertised from
version 0 on, though it is served from version 3 on: librdkafka 2.4 compresses nothing but by zstd otherwise.

- **served**: as in Kafka.
- **partly**: for some requests, or with a difference; the last column says which.
- **refused**: answered with an error that says why, whatever is asked for.
- **missing**: not advertised.

`make check` compares the table with what is served; `python -m tools.api_table --write` writes it.

| key | API | versions in Kafka | here | answer | |
| --- | --- | --- | --- | --- | --- |
"""


def page() -> str:
    served = {route.api.api_key: route.api for route in ROUTES}
    lines = []
    for kafkas in KAFKA:
        ours = served.get(kafkas.key)
        here = "" if ours is None else _versions(ours.version_min, ours.version_max)
        answer, why = _answer(kafkas, served=ours is not None)
        lines.append(
            f"| {kafkas.key} | {kafkas.name} | {_versions(kafkas.first, kafkas.last)} | {here} | {answer} | {why} |\n"
        )
    return HEAD + "".join(lines)


def _versions(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _answer(api: KafkaApi, *, served: bool) -> tuple[str, str]:
    if not served:
        return "missing", MISSING.get(api.key, "")
    if api.key in REFUSED:
        return "refused", REFUSED[api.key]
    return ("partly", PARTLY[api.key]) if api.key in PARTLY else ("served", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write the page instead of printing it")
    if parser.parse_args().write:
        PAGE.write_text(page())
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
