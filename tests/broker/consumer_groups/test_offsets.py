"""Transcripts of committing, fetching, deleting and expiring offsets, and of deleting groups."""

from __future__ import annotations

import msgspec
from tests.broker.consumer_groups.transcript import AT_ONCE, GROUP, Transcript, protocols

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.protocol.error_codes import ErrorCode

OK = ErrorCode.NONE
P0 = ("flights", 0)
P1 = ("flights", 1)
OTHER = ("other", 0)
MINUTE_MS = 60_000


def retained(minutes: int) -> ConsumerGroupsConfig:
    return msgspec.structs.replace(
        AT_ONCE, offsets_retention_minutes=minutes, offsets_retention_check_interval_ms=MINUTE_MS
    )


def test_a_consumer_without_a_group_commits_and_fetches() -> None:
    table = Transcript()
    assert table.commit({P0: 5, P1: 7}) == [OK, OK]
    assert table.fetch(P0, P1, OTHER) == {P0: 5, P1: 7, OTHER: -1}
    assert table.fetch() == {P0: 5, P1: 7}
    assert table.state == "Empty"
    table.restart()
    assert table.fetch() == {P0: 5, P1: 7}


def test_offsets_of_nobody_are_unknown() -> None:
    table = Transcript()
    assert table.fetch(P0) == {P0: -1}
    assert table.fetch() == {}


def test_members_commit_with_their_generation() -> None:
    table = Transcript()
    generation = table.stable("a")
    assert table.commit({P0: 5}, client="a", generation=generation) == [OK]
    assert table.commit({P0: 6}) == [ErrorCode.UNKNOWN_MEMBER_ID], "the group has members"
    assert table.fetch(P0) == {P0: 5}


def test_commits_of_a_generation_without_a_group() -> None:
    table = Transcript()
    table.ids["a"] = "a-1"
    assert table.commit({P0: 5}, client="a", generation=3) == [ErrorCode.ILLEGAL_GENERATION]
    assert table.commit({P0: 5}, client="a", generation=3, version=9) == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert table.state == "Dead"


def test_commits_while_rebalancing() -> None:
    table = Transcript()
    generation = table.stable("a")
    table.join("b")
    assert table.state == "PreparingRebalance"
    assert table.commit({P0: 5}, client="a", generation=generation) == [OK], "the last before it joins again"
    a = table.join("a")
    assert table.state == "CompletingRebalance"
    assert table.commit({P0: 6}, client="a", generation=a.generation_id) == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert table.fetch(P0) == {P0: 5}


def test_a_commit_keeps_the_session_alive() -> None:
    table = Transcript()
    generation = table.stable("a")
    for offset in range(5):
        table.wait(6_000)
        assert table.commit({P0: offset}, client="a", generation=generation) == [OK]
    assert table.state == "Stable"


def test_metadata_is_kept_up_to_its_bound() -> None:
    table = Transcript()
    assert table.commit({P0: 5}, metadata="m" * 4_096) == [OK]
    assert table.commit({P0: 6}, metadata="m" * 4_097) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    value = table.machine.state.offsets.get(GROUP, *P0)
    assert value is not None
    assert (value.offset, value.metadata, value.leader_epoch) == (5, "m" * 4_096, 3)


def test_deleting_offsets_spares_subscribed_topics() -> None:
    table = Transcript()
    generation = table.stable("a", offers=protocols("range", topics=("flights",)))
    table.commit({P0: 5, OTHER: 6}, client="a", generation=generation)
    assert table.delete_offset(*P0) == (OK, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    assert table.delete_offset(*OTHER) == (OK, OK)
    assert table.delete_offset("never", 0) == (OK, OK)
    assert table.fetch() == {P0: 5}
    table.leave("a")
    assert table.delete_offset(*P0) == (OK, OK)
    assert table.fetch() == {}


def test_deleting_offsets_of_a_group_that_is_no_consumer_group() -> None:
    table = Transcript()
    table.stable("a", protocol_type="connect")
    assert table.delete_offset(*P0) == (ErrorCode.NON_EMPTY_GROUP, None)


def test_deleting_offsets_of_no_group() -> None:
    assert Transcript().delete_offset(*P0) == (ErrorCode.GROUP_ID_NOT_FOUND, None)


def test_unreadable_subscriptions_keep_all_offsets() -> None:
    table = Transcript()
    offers = (type(protocols("range")[0])(name="range", metadata=b"\x00\x01garbage"),)
    generation = table.stable("a", offers=offers)
    table.commit({P0: 5}, client="a", generation=generation)
    assert table.delete_offset(*P0) == (OK, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)


def test_deleting_groups() -> None:
    table = Transcript()
    assert table.delete_group() is ErrorCode.GROUP_ID_NOT_FOUND
    generation = table.stable("a")
    table.commit({P0: 5}, client="a", generation=generation)
    assert table.delete_group() is ErrorCode.NON_EMPTY_GROUP
    table.leave("a")
    assert table.delete_group() is OK
    assert table.state == "Dead"
    assert table.fetch() == {}
    table.restart()
    assert table.state == "Dead"
    assert table.fetch() == {}


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    table = Transcript()
    table.commit({P0: 5, OTHER: 6})
    table.commit({P0: 7}, group="simple")
    assert table.forget_topic("flights") == 2
    assert table.fetch() == {OTHER: 6}
    assert table.describe("simple").group_state == "Dead", "it had nothing else"
    table.restart()
    assert table.fetch() == {OTHER: 6}
    assert table.describe("simple").group_state == "Dead"


def test_offsets_of_simple_consumers_expire_after_their_commit() -> None:
    table = Transcript(retained(10))
    table.restart()
    table.commit({P0: 5})
    table.wait(6 * MINUTE_MS)
    table.commit({P1: 6})
    table.wait(4 * MINUTE_MS)
    assert table.fetch() == {P1: 6}
    table.wait(6 * MINUTE_MS)
    assert table.fetch() == {}
    assert table.state == "Dead"
    assert table.machine.counts.offset_expirations == 2


def test_offsets_of_an_empty_group_expire_after_it_became_empty() -> None:
    table = Transcript(retained(10))
    table.restart()
    generation = table.stable("a", session_ms=1_800_000)
    table.commit({P0: 5}, client="a", generation=generation)
    table.wait(20 * MINUTE_MS)
    assert table.fetch() == {P0: 5}, "the topic is subscribed to"
    table.leave("a")
    table.wait(9 * MINUTE_MS)
    assert table.fetch() == {P0: 5}
    table.wait(MINUTE_MS)
    assert table.fetch() == {}
    assert table.state == "Dead"
    table.restart()
    assert table.state == "Dead"


def test_offsets_of_topics_no_longer_subscribed_expire_under_a_living_group() -> None:
    table = Transcript(retained(10))
    table.restart()
    generation = table.stable("a", session_ms=1_800_000)
    table.commit({P0: 5, OTHER: 6}, client="a", generation=generation)
    table.wait(10 * MINUTE_MS)
    assert table.fetch() == {P0: 5}
    assert table.state == "Stable"


def test_an_old_client_sets_the_time_to_live_itself() -> None:
    table = Transcript(retained(1_000))
    table.restart()
    table.commit({P0: 5}, version=4, retention_ms=2 * MINUTE_MS)
    table.restart()
    table.wait(MINUTE_MS)
    assert table.fetch() == {P0: 5}
    table.wait(2 * MINUTE_MS)
    assert table.fetch() == {}


def test_many_groups_expire_in_several_steps() -> None:
    table = Transcript(retained(1))
    table.restart()
    for index in range(2_500):
        table.commit({P0: index}, group=f"g{index}")
    table.wait(2 * MINUTE_MS)
    assert table.machine.state.classic == {}
    assert table.machine.state.offsets.count == 0
