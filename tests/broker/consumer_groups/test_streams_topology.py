"""A topology and the topics there are make sizes, internal topics, and reasons why an application has no tasks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.broker.consumer_groups.streams_clients import WORDS, application, internal, part

from mainstem.broker.consumer_groups.streams.topology import (
    ConfiguredTopology,
    Status,
    check_topology,
    configure,
)
from mainstem.broker.errors import MemberRefused
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.streams_group_records import StreamsGroupTopologyValue
from mainstem.protocol.messages.streams_groups import StreamsSubtopology, StreamsTopology


def configured(topology: StreamsTopology, topics: Mapping[str, int]) -> ConfiguredTopology:
    check_topology(topology.subtopologies)
    value = StreamsGroupTopologyValue(epoch=topology.epoch, subtopologies=topology.subtopologies)
    return configure(value, topics.get)


def sizes_of_missing(found: ConfiguredTopology) -> dict[str, int]:
    return {topic.info.name: topic.partitions for topic in found.missing}


def fault_of(found: ConfiguredTopology) -> tuple[int, str]:
    assert found.fault is not None
    return found.fault.status_code, found.fault.status_detail


def test_source_topics_are_missing() -> None:
    code, detail = fault_of(configured(WORDS, {}))
    assert (code, detail) == (Status.MISSING_SOURCE_TOPICS, "source topics are missing: lines")


def test_internal_topics_follow_from_the_sources() -> None:
    found = configured(WORDS, {"lines": 5})
    assert sizes_of_missing(found) == {"by-word": 5, "counts-changelog": 5}
    assert fault_of(found)[0] == Status.MISSING_INTERNAL_TOPICS
    assert "by-word, counts-changelog" in fault_of(found)[1]
    assert found.sizes == {}
    some = configured(WORDS, {"lines": 5, "by-word": 5})
    assert sizes_of_missing(some) == {"counts-changelog": 5}
    ready = configured(WORDS, {"lines": 5, "by-word": 5, "counts-changelog": 5})
    assert (ready.ready, ready.sizes, ready.missing) == (True, {"0": 5, "1": 5}, [])


def test_an_application_may_say_how_many_partitions() -> None:
    topology = application(
        part("0", "lines", writes=["by-word"]), part("1", reads=[internal("by-word", 7)], keeps=[internal("log")])
    )
    assert sizes_of_missing(configured(topology, {"lines": 2})) == {"by-word": 7, "log": 7}


def test_sizes_go_through_chains_of_repartition_topics() -> None:
    topology = application(
        part("2", reads=[internal("second")], keeps=[internal("log")]),
        part("1", "side", reads=[internal("first")], writes=["second"]),
        part("0", "lines", writes=["first"]),
    )
    found = configured(topology, {"lines": 3, "side": 4})
    assert sizes_of_missing(found) == {"first": 3, "second": 4, "log": 4}


def test_a_long_chain_costs_its_length() -> None:
    links = [part(str(number), reads=[internal(f"t{number}")], writes=[f"t{number + 1}"]) for number in range(998)]
    topology = application(*reversed(links), part("first", "lines", writes=["t0"]))
    found = configured(topology, {"lines": 3})
    assert sizes_of_missing(found) == {f"t{number}": 3 for number in range(998)}


def test_topics_that_are_joined_are_alike() -> None:
    topology = application(
        part("0", "lines", writes=["made"]),
        part("1", "names", reads=[internal("made")], keeps=[internal("log")], alike=[((0,), (0,))]),
    )
    assert sizes_of_missing(configured(topology, {"lines": 3, "names": 8})) == {"made": 8, "log": 8}
    both = application(part("0", "a", "b", alike=[((0, 1), ())]))
    code, detail = fault_of(configured(both, {"a": 2, "b": 3}))
    assert code == Status.INCORRECTLY_PARTITIONED_TOPICS
    assert "a (2), b (3)" in detail
    fixed = application(
        part("0", "lines", writes=["made"]), part("1", "names", reads=[internal("made", 4)], alike=[((0,), (0,))])
    )
    assert fault_of(configured(fixed, {"lines": 3, "names": 8}))[0] == Status.INCORRECTLY_PARTITIONED_TOPICS


def test_internal_topics_of_another_size_are_named() -> None:
    code, detail = fault_of(configured(WORDS, {"lines": 5, "by-word": 5, "counts-changelog": 2}))
    assert code == Status.INCORRECTLY_PARTITIONED_TOPICS
    assert "counts-changelog (2, not 5)" in detail


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((part("0"),), "reads no topic"),
        ((part("0", "a"), part("0", "b")), "the same id"),
        ((part("0", "a", keeps=[internal("log", 3)]),), "must say 0"),
        ((part("0", reads=[internal("made")]),), "no subtopology writes"),
        ((part("0", "a", alike=[((1,), ())]),), "copartition"),
        (
            (
                part("0", reads=[internal("x")], writes=["y"]),
                part("1", reads=[internal("y")], writes=["x"]),
            ),
            "follow from each other",
        ),
    ],
)
def test_impossible_topologies_are_refused(parts: tuple[StreamsSubtopology, ...], says: str) -> None:
    with pytest.raises(MemberRefused) as refusal:
        check_topology(parts)
    assert says in refusal.value.why
    assert refusal.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY
