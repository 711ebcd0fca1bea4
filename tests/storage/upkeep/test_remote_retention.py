"""Which remote files count no more, and who says so."""

from __future__ import annotations

from typing import Any

from tests.storage.upkeep.test_local_copies import merged_and_copied
from tests.storage.upkeep.three_places import START_MS, ThreePlaces, story, tiered

from mainstem.storage.upkeep.remote_retention import RemoteRetention


def test_files_go_once_the_log_start_is_behind_them_and_not_before() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places, 3, (1, 2))
        await places.remote_retention.run()
        assert places.remote.forgotten == []
        places.advance(1_500)
        await places.log_starts.move_log_starts()
        assert (places.log_start(1), places.log_start(2)) == (1, 0)
        await places.remote_retention.run()
        assert places.remote_offsets(1) == {0, 1, 2}, "topic 2 lives in the same file"
        places.advance(1_000_000)
        await places.log_starts.move_log_starts()
        await places.remote_retention.run()
        assert places.remote_offsets(1) == places.remote_offsets(2) == set()
        assert len(places.remote.forgotten) == 3
        places.check()

    story([tiered(1, retention_ms=1000), tiered(2, retention_ms=5000)], told)


def test_retention_goes_on_where_local_copies_are_gone() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places)
        places.advance(1_500)
        await places.local_copies.run()
        assert places.local_offsets(1) == {2}
        places.advance(3_000)
        await places.log_starts.move_log_starts()
        assert places.log_start(1) == 2, "records that are in the tier alone grow old as well"
        await places.remote_retention.run()
        assert places.remote_offsets(1) == {2}

    story([tiered(1, local_ms=100, retention_ms=3000)], told)


def test_bytes_of_all_places_count_and_each_once() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places, 6)
        places.advance(4_500)
        await places.local_copies.run()
        assert places.local_offsets(1) == {5}
        places.produce([(1, START_MS, 10)])
        for _ in range(3):  # the second and third time what is known of remote files stands in for their indexes
            await places.log_starts.move_log_starts()
            assert places.log_start(1) == 3, "40 bytes stay of 70"
        reads = len(places.remote.read)
        await places.log_starts.move_log_starts()
        assert len(places.remote.read) == reads

    story([tiered(1, local_ms=100, retention_bytes=40)], told)


def test_only_the_leader_says_so() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places)
        places.advance(1_000_000)
        await places.log_starts.move_log_starts()
        places.leads = False
        await places.remote_retention.run()
        assert places.remote.forgotten == []
        places.leads = True
        places.remote.refusal = "another node leads"
        await places.remote_retention.run()
        assert places.remote_offsets(1) == {0, 1, 2}
        places.remote.refusal = ""
        await places.remote_retention.run()
        assert places.remote_offsets(1) == set()

    story([tiered(1, retention_ms=1000)], told)


def test_a_file_is_read_when_its_first_batch_is_dead_and_then_when_its_witness_is() -> None:
    async def told(places: ThreePlaces) -> None:
        for place in range(3):
            places.produce([(1, START_MS + place * 1000, 10)])
        await places.split()
        await places.merge(0, 1)
        places.prune()
        await places.tier()
        places.remote.read.clear()
        await places.remote_retention.run()
        assert places.remote.read == [], "the file begins with what is live"
        places.advance(1_500)
        await places.log_starts.move_log_starts()
        places.remote.read.clear()
        for _ in range(2):
            await places.remote_retention.run()
            assert len(places.remote.read) == 1
        places.remote.out = True
        places.advance(10_000)
        await places.move_log_starts({0: [(1 << 32, 3)]})
        await places.remote_retention.run()
        assert places.remote_offsets(1) == {0, 1, 2}, "what cannot be read may be live"
        places.remote.out = False
        await places.remote_retention.run()
        assert places.remote_offsets(1) == set()

    story([tiered(1, retention_ms=1000)], told)


def test_files_of_deleted_topics_go_unread() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places, 2)
        places.remote.out = True
        places.table.drop(1)
        await places.remote_retention.run()
        assert places.remote_offsets(1) == {0, 1}, "a queue that is merely unknown here is not dead"
        places.deleted.add(1)
        await places.remote_retention.run()
        assert places.remote_offsets(1) == set()

    story([tiered(1)], told)


def test_what_a_deleted_topic_shares_with_another_stays() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places, 1, (1, 2))
        places.table.drop(1)
        places.deleted.add(1)
        await places.remote_retention.run()
        assert places.remote_offsets(2) == {0}

    story([tiered(1), tiered(2)], told)


def test_many_dead_files_are_told_in_parts() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places, 6)
        said: list[int] = []
        forget = places.remote.forget

        async def counted(group: int, names: list[str]) -> str:
            said.append(len(names))
            return await forget(group, names)

        places.remote.forget = counted  # type: ignore[assignment, method-assign]
        places.table.drop(1)
        places.deleted.add(1)
        this: Any = places
        parts = RemoteRetention(places.remote, lambda group: True, this, places.liveness, names_bytes_max=12)
        await parts.run()
        assert sum(said) == 6
        assert max(said) == 2
        assert places.remote_offsets(1) == set()

    story([tiered(1)], told)


def test_what_is_merged_across_a_hole_does_not_let_younger_records_go() -> None:
    """Blocks on both sides of remote ones are merged here: what lies between them is looked at behind them."""

    async def told(places: ThreePlaces) -> None:
        ages = [0, 9_000, 0]  # the one in the middle is younger than those around it
        for place, age in enumerate(ages):
            places.produce([(1, START_MS + age, 10)])
            await places.split()
            await places.merge(place, place + 1)
        places.prune()
        await places.tier()
        (middle,) = [name for name, rows in places.rows.items() if rows["base_offset"].tolist() == [1]]
        await places.drop([middle], ())
        await places.merge(0, 2)
        assert places.local_offsets(1) == {0, 2}
        places.advance(2_000)
        await places.log_starts.move_log_starts()
        places.check()
        assert places.log_start(1) == 1

    story([tiered(1, retention_ms=1000)], told)
