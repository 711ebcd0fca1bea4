"""Upkeep of the remote tier goes by the stays of queues that have been in several write groups."""

from __future__ import annotations

import dataclasses

from tests.storage.upkeep.test_local_copies import merged_and_copied
from tests.storage.upkeep.test_untiering import without_tier
from tests.storage.upkeep.three_places import GROUP, START_MS, ThreePlaces, queue_of, story, tiered

from mainstem.model import SLOTS, Topic, slot_of
from mainstem.storage.placement import Stay

NEXT = GROUP + 1
"""Another write group."""


def limited(known: Topic, retention_bytes: int) -> Topic:
    return dataclasses.replace(known, settings=dataclasses.replace(known.settings, retention_bytes=retention_bytes))


def test_a_file_with_two_stays_of_a_queue_loses_the_first_one_alone() -> None:
    async def told(places: ThreePlaces) -> None:
        for count in (6, 3):
            places.produce([(1, START_MS + number, 10) for number in range(count)])
            await places.split()
            place = len(places.manifest.spans(GROUP)) - 1
            await places.merge(place, place + 1)
        places.prune()
        await places.tier()
        await places.log_starts.move_log_starts()  # from here on one number stands for the index of a file
        places.placement.grow([GROUP] * SLOTS, 2)
        places.placement.remember(queue_of(1), [Stay(GROUP, 0), Stay(NEXT, 2), Stay(GROUP, 4)])
        places.topics = [limited(places.topics[0], 25)]
        await places.log_starts.move_log_starts()
        assert places.log_start(1) == 2, "what lies behind is in another write group"

    story([tiered(1, retention_bytes=1000)], told)


def test_what_a_queue_has_in_the_tier_from_before_its_move_goes_as_well() -> None:
    async def told(places: ThreePlaces) -> None:
        await merged_and_copied(places)
        places.advance(10_000)
        await places.local_copies.run()
        assert places.local_offsets(1) == set()
        places.topics = [without_tier(places.topics[0])]
        places.terms = {NEXT: 1}  # another node leads the write group where the queue still is
        await places.untiering.run()
        slots = [GROUP] * SLOTS
        slots[slot_of(queue_of(1))] = NEXT
        places.placement.grow(slots, 2, {slot_of(queue_of(1)): 1})
        places.placement.arrive(queue_of(1), GROUP, NEXT, 3)
        places.placement.place(slot_of(queue_of(1)), NEXT, 1)
        await places.untiering.run()
        assert places.log_start(1) == 3

    story([tiered(1, local_ms=1000)], told)
