"""Retention over journal, disk 2 and the remote tier comes to what it would over one log, and no step loses a live
record: random stories of records that are produced, split, merged, copied, dropped and retained."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.storage.small_node import topic
from tests.storage.upkeep.three_places import START_MS, Record, ThreePlaces, queue_of, story

from mainstem.kernel import COMMITTED_END
from mainstem.model import Topic


def expected_start(known: Topic, records: Sequence[Record], start: int, now_ms: int) -> int:
    """The beginning of a queue after a round, record by record."""
    limits, left = known.settings, list(range(start, len(records)))
    expected = start
    total = sum(records[offset][2] for offset in left)
    for offset in left:
        if limits.retention_ms < 0 or records[offset][1] >= now_ms - limits.retention_ms:
            break
        expected = offset + 1
    for offset in left:
        if limits.retention_bytes < 0 or total - records[offset][2] < limits.retention_bytes:
            break
        total -= records[offset][2]
        expected = max(expected, offset + 1)
    if limits.retention_records >= 0:
        expected = max(expected, len(records) - limits.retention_records)
    return expected


FAR = ("journal", "split", "merged", "tiered")
STEPS = {
    "fill": 8, "pass": 8, "retain": 5, "drop copies": 5, "merge": 3, "toggle": 1, "prune": 1, "tier": 1, "restart": 1,
    "out": 1,
}  # fmt: skip
"""Each with its weight."""


def random_topic(number: int, randomness: random.Random) -> Topic:
    choose = randomness.choice
    return topic(
        number, 1, remote_storage_enable=randomness.random() < 0.8, retention_ms=choose([-1, 6000, 15_000, 15_000]),
        retention_bytes=choose([-1, -1, -1, 60]), retention_records=choose([-1, -1, -1, 7]),
        local_retention_ms=choose([-2, 500, 500, 2000]), local_retention_bytes=choose([-2, -2, 20]),
    )  # fmt: skip


async def take(step: str, places: ThreePlaces, randomness: random.Random) -> None:
    match step:
        case "fill":
            everywhere = randomness.random() < 0.6
            numbers = range(1, 5) if everywhere else [randomness.randint(1, 4) for _ in range(randomness.randint(1, 5))]
            now_ms = places.clock.now_ms()
            places.produce([(number, now_ms, 5 + 3 * number) for number in numbers])
            places.advance(10)
            await bring(places, FAR.index(randomness.choice([*FAR, "tiered", "tiered"])))
        case "pass":
            places.advance(randomness.randint(100, 2500))
        case "merge":
            first = randomness.randint(0, 3)
            await places.merge(first, first + randomness.randint(1, 4))
        case "tier":
            await places.tier()
        case "prune":
            places.prune()
        case "drop copies":
            await places.first_seen(0)
            await places.local_copies.run()
        case "restart":
            places.restart()
        case "out":
            places.remote.out = not places.remote.out
        case "toggle":  # what goes to the tier from now on
            old = places.topic(randomness.randint(1, 4))
            enabled = not old.settings.remote_storage_enable
            changed = dataclasses.replace(old.settings, remote_storage_enable=enabled)
            places.topics[places.topics.index(old)] = dataclasses.replace(old, settings=changed)
        case "retain":
            await retain(places)


async def bring(places: ThreePlaces, far: int) -> None:
    """Take what there is so many steps on its way."""
    if far > 0:
        await places.split()
    if far > 1:
        for place, span in enumerate(places.manifest.spans(0)):
            if span.runs:
                await places.merge(place, place + 1)
    if far > 2:
        await places.tier()
        places.prune()


async def retain(places: ThreePlaces) -> None:
    before = {known.number: places.log_start(known.number) for known in places.topics}
    await places.log_starts.move_log_starts()
    for known in places.topics:
        records, start = places.said[known.number], before[known.number]
        expected = expected_start(known, records, start, places.clock.now_ms())
        found = places.log_start(known.number)
        assert found <= expected, f"topic {known.number} lost what it keeps"
        if not places.remote.out and known.settings.retention_bytes < 0:
            assert found == expected, f"topic {known.number} keeps what is to go"
    await places.drop_dead()
    await places.remote_retention.run()


@given(st.integers(0, 2**32))
@example(1265219)  # the store is out that alone has an offset in the middle of a local file
@settings(max_examples=examples(40), deadline=None)
def test_three_places_are_one_log_to_retention(seed: int) -> None:
    randomness = random.Random(seed)

    async def told(places: ThreePlaces) -> None:
        for step in randomness.choices([*STEPS], [*STEPS.values()], k=90):
            await take(step, places, randomness)
            places.check()

    story([random_topic(number, randomness) for number in range(1, 5)], told)


def test_what_a_node_saw_of_files_before_it_had_applied_their_blocks_is_not_remembered() -> None:
    """It knows less of the queues in them then than when it has."""

    async def told(places: ThreePlaces) -> None:
        places.produce([(1, START_MS - 200_000, 10), (2, START_MS, 10)])
        await places.split()
        places.prune()
        await places.first_seen(0)
        places.has_applied_files = False
        slot = places.table.find(queue_of(1))
        places.table.set(slot, COMMITTED_END, 0)
        await places.log_starts.move_log_starts()
        places.table.set(slot, COMMITTED_END, 1)
        places.has_applied_files = True
        places.advance(20_000)
        await places.log_starts.move_log_starts()
        assert (places.log_start(1), places.log_start(2)) == (1, 0)

    story([topic(1, 1, retention_ms=6000), topic(2, 1, retention_ms=100_000)], told)


def test_a_topic_whose_limits_change_while_a_round_reads_loses_nothing_by_those_of_before() -> None:
    async def told(places: ThreePlaces) -> None:
        places.produce([(1, START_MS, 10), (2, START_MS, 10)])
        await places.split()
        places.prune()
        await places.first_seen(0)
        places.advance(20_000)
        rows_of = places.rows_of

        async def changed_meanwhile(name: str, groups: Sequence[int], groups_at: object) -> object:
            places.topics[0] = topic(1, 1, retention_ms=100_000)
            return await rows_of(name, groups, groups_at)

        places.rows_of = changed_meanwhile  # type: ignore[method-assign, assignment]
        assert await places.log_starts.move_log_starts() == 1
        assert (places.log_start(1), places.log_start(2)) == (0, 1)

    story([topic(1, 1, retention_ms=6000), topic(2, 1, retention_ms=6000)], told)
