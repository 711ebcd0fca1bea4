"""The part that a topic loses when it gives up its remote tier."""

from __future__ import annotations

import dataclasses

from tests.storage.upkeep.test_local_copies import merged_and_copied
from tests.storage.upkeep.three_places import START_MS, ThreePlaces, story, tiered

from mainstem.model import Topic


def without_tier(known: Topic, *, deletes: bool = True) -> Topic:
    settings = dataclasses.replace(known.settings, remote_storage_enable=False, remote_log_delete_on_disable=deletes)
    return dataclasses.replace(known, settings=settings)


async def with_two_gone(places: ThreePlaces) -> None:
    """Three records in the tier, of which disk 2 has the last, and one in the journal."""
    await merged_and_copied(places)
    places.produce([(1, START_MS + 3000, 10)])
    places.advance(2_500)
    await places.local_copies.run()
    assert places.local_offsets(1) == {2, 3}


def test_what_is_in_the_tier_alone_goes() -> None:
    async def told(places: ThreePlaces) -> None:
        await with_two_gone(places)
        places.topics = [without_tier(places.topics[0])]
        await places.untiering.run()
        assert places.log_start(1) == 2
        await places.remote_retention.run()
        assert places.remote_offsets(1) == {2}, "what a file has besides is not known to be elsewhere"
        places.check()

    story([tiered(1, local_ms=1000)], told)


def test_nothing_goes_unless_both_configs_say_so() -> None:
    async def told(places: ThreePlaces) -> None:
        await with_two_gone(places)
        (known,) = places.topics
        for both in (True, False):
            settings = dataclasses.replace(
                known.settings, remote_storage_enable=both, remote_log_delete_on_disable=both
            )
            places.topics = [dataclasses.replace(known, settings=settings)]
            await places.untiering.run()
            assert places.log_start(1) == 0

    story([tiered(1, local_ms=1000)], told)


def test_nothing_goes_of_a_topic_that_has_the_tier_again_while_disk_2_is_searched() -> None:
    async def told(places: ThreePlaces) -> None:
        await with_two_gone(places)
        (known,) = places.topics
        places.topics = [without_tier(known)]
        first_here = places.first_here

        async def changed_meanwhile(queue_id: int, offset: int) -> int | None:
            places.topics = [known]
            return await first_here(queue_id, offset)

        places.first_here = changed_meanwhile  # type: ignore[method-assign]
        places.restart()
        await places.untiering.run()
        assert places.log_start(1) == 0
        await places.untiering.run()
        assert places.log_start(1) == 0
        places.first_here = first_here  # type: ignore[method-assign]
        places.restart()
        places.topics = [without_tier(known)]
        await places.untiering.run()
        assert places.log_start(1) == 2

    story([tiered(1, local_ms=1000)], told)


def test_a_queue_that_is_in_the_tier_as_a_whole_loses_all() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places)
        places.advance(10_000)
        await places.local_copies.run()
        assert places.local_offsets(1) == set()
        places.topics = [without_tier(places.topics[0])]
        places.remote.out = True
        await places.untiering.run()
        assert places.log_start(1) == 0, "nothing says that it is there"
        places.remote.out = False
        await places.untiering.run()
        assert places.log_start(1) == 3

    story([tiered(1, local_ms=1000)], told)


def test_what_cannot_be_read_is_looked_at_again_and_all_else_once() -> None:
    async def told(places: ThreePlaces) -> None:
        await with_two_gone(places)
        places.topics = [without_tier(places.topics[0])]
        places.damaged = {"1.pack"}
        await places.untiering.run()
        assert places.log_start(1) == 0
        places.damaged = set()
        places.read.clear()
        for _ in range(3):
            await places.untiering.run()
        assert (places.log_start(1), places.read) == (2, ["first"])
        places.terms = {0: 2}
        await places.untiering.run()
        assert places.read == ["first"] * 2, "what a former leader did not do, this one does"

    story([tiered(1, local_ms=1000)], told)


def test_others_than_the_leader_move_nothing() -> None:
    async def told(places: ThreePlaces) -> None:
        await with_two_gone(places)
        places.topics = [without_tier(places.topics[0])]
        places.terms = {}
        await places.untiering.run()
        assert places.log_start(1) == 0

    story([tiered(1, local_ms=1000)], told)


def test_a_queue_that_the_tier_has_nothing_of_is_left_alone() -> None:
    """Its missing part is not missing because of the tier."""

    async def told(places: ThreePlaces) -> None:
        await with_two_gone(places)
        places.produce([(2, START_MS, 10)])
        places.topics = [without_tier(known) for known in places.topics]
        places.read.clear()
        await places.untiering.run()
        assert (places.log_start(2), places.read) == (0, ["first"])

    story([tiered(1, local_ms=1000), tiered(2)], told)
