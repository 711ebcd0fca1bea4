"""Fetch sessions, by themselves: ids, epochs, order, and the two bounds."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.broker.fetching.fetch_sessions import FetchSession, FetchSessions
from mainstem.kernel import FetchPlan, scan_fetch
from mainstem.protocol import codec
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest
from mainstem.protocol.messages.fetch import FetchTopic as AskedTopic


def make(sessions_max: int = 3, partitions_max: int = 100, idle_ms_min: int = 1000) -> FetchSessions:
    return FetchSessions(
        sessions_max=sessions_max, idle_ms_min=idle_ms_min, partitions_max=partitions_max, random=Random(7)
    )


def follow(*partitions: int, offset: int = 0) -> FetchPlan:
    """The plan of a request for these partitions."""
    asked = tuple(
        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1000) for partition in partitions
    )
    topics = (AskedTopic(topic="t", partitions=asked),) if asked else ()
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics)
    return scan_fetch(memoryview(codec.write(request, 12)), 0, 12).plan


def followed(session: FetchSession) -> list[int]:
    return [row.partition for row in session.plan.partitions()]


def test_a_session_is_found_until_it_is_closed() -> None:
    sessions = make()
    session = sessions.open(follow(0, 1), 0, by_id=False)
    assert session is not None
    assert session.session_id > 0
    assert session.epoch == 1
    assert sessions.find(session.session_id, 5) is session
    assert session.used_at_ms == 5
    sessions.close(session.session_id)
    sessions.close(session.session_id)
    assert sessions.find(session.session_id, 6) is None
    assert (len(sessions), sessions.partitions_held) == (0, 0)


def test_epochs_wrap_around_to_one() -> None:
    session = make().open(follow(0), 0, by_id=False)
    assert session is not None
    session.epoch = 2**31 - 1
    session.advance()
    assert session.epoch == 1


def test_updates_add_change_and_forget() -> None:
    sessions = make()
    session = sessions.open(follow(0, 1, 2), 0, by_id=False)
    assert session is not None
    assert sessions.update(session, follow(1, 5, offset=9), [("t", [0, 99]), ("other", [1])])
    assert followed(session) == [1, 2, 5]
    assert [row.fetch_offset for row in session.plan.partitions()] == [9, 0, 9]
    assert sessions.partitions_held == 3


def test_a_new_session_pushes_out_the_one_idle_longest_and_only_if_idle_long_enough() -> None:
    sessions = make(sessions_max=2)
    first, second = (sessions.open(follow(0), now, by_id=False) for now in (0, 10))
    assert first is not None
    assert second is not None
    assert sessions.open(follow(0), 900, by_id=False) is None
    sessions.find(first.session_id, 950)
    third = sessions.open(follow(0), 1010, by_id=False)
    assert third is not None
    assert sessions.find(second.session_id, 1010) is None
    assert sessions.find(first.session_id, 1010) is first
    assert sessions.evictions == 1


def test_partitions_are_bounded_over_all_sessions() -> None:
    sessions = make(sessions_max=10, partitions_max=5)
    assert sessions.open(follow(*range(6)), 0, by_id=False) is None
    session = sessions.open(follow(0, 1, 2), 0, by_id=False)
    assert session is not None
    assert sessions.open(follow(0, 1, 2), 1, by_id=False) is None
    assert not sessions.update(session, follow(3, 4, 5), [])
    assert followed(session) == [0, 1, 2]
    assert sessions.update(session, follow(3, 4), [])
    assert sessions.partitions_held == 5


def test_no_sessions_where_none_are_allowed_or_nothing_is_followed() -> None:
    assert make(sessions_max=0).open(follow(0), 0, by_id=False) is None
    assert make().open(follow(), 0, by_id=False) is None


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["open", "close", "update"]), st.integers(0, 5), st.integers(0, 800)),
        max_size=60,
    )
)
@settings(max_examples=60, deadline=None)
def test_the_bounds_hold_and_the_count_is_right_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    sessions = make(sessions_max=3, partitions_max=8, idle_ms_min=500)
    ids: list[int] = []
    now = 0
    for what, number, elapsed in steps:
        now += elapsed
        if what == "open":
            opened = sessions.open(follow(*range(number)), now, by_id=False)
            ids += [opened.session_id] if opened else []
        elif ids and what == "close":
            sessions.close(ids[number % len(ids)])
        elif ids:
            found = sessions.find(ids[number % len(ids)], now)
            if found is not None:
                sessions.update(found, follow(number, number + 1), [("t", [number + 2])])
        alive = [found for found in (sessions.find(id, now) for id in ids) if found]
        assert len(sessions) == len(alive) <= 3
        assert sessions.partitions_held == sum(len(found.plan) for found in alive) <= 8
