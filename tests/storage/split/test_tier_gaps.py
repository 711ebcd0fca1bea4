"""Files that were passed over while their topics did not ask go later, as long as they are on disk 2: what the tier has
of a queue is found by every search then, wherever merges have cut spans meanwhile."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.storage.split.test_real_merges import LINES
from tests.storage.split.test_tier_log import merged, told, topic
from tests.storage.split.tiered_store import GROUPS, TieredStore

from mainstem.model import Topic
from mainstem.rpc.messages.split import MergeWaits
from mainstem.rpc.messages.tier import TierWork
from mainstem.storage.split.copying import LOOK_SECONDS
from mainstem.storage.split.tier_log import REST_SECONDS_MAX

ASKING, PLAIN = "forever+remote", "forever"


def asks(number: int, *, now: bool) -> Topic:
    return topic(number, remote_storage_enable=True, remote_log_copy_disable=not now)


def set_asking(store: TieredStore, *asking: bool) -> None:
    """By the number of the topic, whether it is copied from now on; those that are merged then have a class of it."""
    store.topics = [asks(number, now=now) for number, now in enumerate(asking)]
    store.classes[:] = [ASKING if now else PLAIN for now in asking]
    store.clock.advance(LOOK_SECONDS)
    store.renew_lease()


async def check_all(store: TieredStore) -> None:
    await store.check_remote()
    for group in range(GROUPS):
        await store.check_searches(group)


def local_classes(store: TieredStore) -> set[str]:
    return {
        file.retention_class for group in range(GROUPS) for *_, file in store.store.manifest.spans(group).described()
    }


def remote_sizes(store: TieredStore) -> list[int]:
    return [sum(file.batch_bytes for file in store.remote_files(group)) for group in range(GROUPS)]


def test_what_was_passed_over_while_copying_was_off_goes_when_it_is_on_again(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        set_asking(store, True, True)
        await merged(store)
        await store.upload_all()
        before = remote_sizes(store)
        set_asking(store, False, True)
        await merged(store)
        await store.upload_all()
        assert PLAIN in local_classes(store)
        set_asking(store, True, True)
        waits = await store.tier_log.waits()
        assert waits.bytes > 0, "a splitter is started for it"
        assert store.tier_log.waiting_bytes() > 0, "it is told as lag"
        await store.upload_all()
        await check_all(store)
        assert all(after > size for after, size in zip(remote_sizes(store), before, strict=True))
        assert await store.tier_log.waits() == MergeWaits(0)
        assert store.tier_log.waiting_bytes() == 0

    told(tmp_path, story, classes=[ASKING, ASKING])


def test_a_topic_that_asks_late_has_its_earlier_files_moved(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        set_asking(store, False, True)
        await merged(store)
        await store.upload_all()
        set_asking(store, True, True)
        await merged(store, 2)
        await store.upload_all()
        assert all(store.logged.position(group).upto for group in range(GROUPS))
        await check_all(store)

    told(tmp_path, story, classes=[ASKING, ASKING])


def test_nothing_is_compared_twice_and_nothing_where_nobody_asks(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        set_asking(store, True, True)
        await merged(store)
        await store.upload_all()
        asked = store.bucket.asked
        assert await store.ask() == TierWork()
        assert store.bucket.asked == asked, "files whose uploads are there are known by what is said of both"
        store.begin()
        set_asking(store, True, True)
        assert await store.ask() == TierWork()
        assert store.bucket.asked == asked

    told(tmp_path, story, classes=[ASKING, ASKING])


def test_a_store_that_is_out_ends_the_look_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        set_asking(store, False, True)
        await merged(store)
        await store.upload_all()
        set_asking(store, True, True)
        store.bucket.weather.down = True
        work = await store.ask(drain=True)
        if work.tier_id:
            names, failure = await store.uploaded(work)
            assert not names
            assert await store.hand_in(work.tier_id, names, failure) == "kept"
        store.bucket.weather.down = False
        store.clock.advance(REST_SECONDS_MAX)
        store.take_lease()
        await store.upload_all()
        await check_all(store)

    told(tmp_path, story, classes=[ASKING, ASKING])


def behind_the_position(store: TieredStore, work: TierWork) -> bool:
    """Whether this is work on what was passed over."""
    (entry,) = store.store.manifest.entries(work.files[0].file.name)
    return entry.upto <= store.logged.position(work.group).upto


async def lacks_what_surrounds_it(store: TieredStore, group: int) -> bool:
    """Whether a span of the tier is inside one of disk 2, behind its beginning, and ends before it, and the tier lacks
    something of that."""
    there = [(one.after, one.upto) for one in store.logged.manifest.spans(group)]
    spans = [
        span
        for span in store.store.manifest.spans(group)
        if span.upto <= store.logged.position(group).upto
        and any(span.after < after and upto < span.upto for after, upto in there)
    ]
    await store.fetch_remote(group)

    def offsets(root: Path, names: Iterable[str]) -> set[tuple[int, int]]:
        mine = [queue_id for queue_id in store.queues if queue_id % 2 == group]
        return {(one, offset) for name in names for one in mine for offset in store.offsets(root, name, one)}

    local = offsets(store.root, [entry.name for span in spans for entry in span])
    return not local <= offsets(store.remote_root, [file.name for file in store.remote_files(group)])


def test_a_file_takes_the_place_of_what_is_there_in_the_midst_of_it(tmp_path: Path) -> None:
    """Else a search for what lies before that would step over it."""

    async def story(store: TieredStore) -> None:
        store.log.lines = LINES._replace(level_two_bytes=400_000)
        for number in range(24):
            set_asking(store, number % 2 == 1, True)
            await merged(store, 2)
            work = await store.ask()
            while work.tier_id and not behind_the_position(store, work):
                assert await store.hand_in(work.tier_id, *(await store.uploaded(work))) in ("kept", "recorded")
                work = await store.ask()
            if work.tier_id:
                store.take_lease()  # what was passed over waits
            if any([await lacks_what_surrounds_it(store, group) for group in range(GROUPS)]):
                break
        else:
            raise AssertionError("merges join no spans")
        set_asking(store, True, True)
        await store.upload_all()
        await check_all(store)
        assert any(store.logged.tier.leaving(group) for group in range(GROUPS)), "they were replaced"

    told(tmp_path, story, classes=[ASKING, ASKING])


@pytest.mark.long
@settings(max_examples=examples(20))
@given(st.integers(0, 2**32))
def test_f_whenever_topics_ask_the_tier_has_all_of_theirs_in_the_end_and_searches_find_it(seed: int) -> None:
    choice = random.Random(seed)

    async def story(store: TieredStore) -> None:
        set_asking(store, *(choice.random() < 0.6 for _ in range(2)))
        for _ in range(choice.randint(2, 8)):
            if choice.random() < 0.4:
                set_asking(store, *(choice.random() < 0.6 for _ in range(2)))
            for _ in range(choice.randint(0, 3)):
                await store.split()
            for _ in range(choice.randint(0, 3)):
                if not await store.merge(drain=choice.random() < 0.7):
                    break
            if choice.random() < 0.2:
                store.logged.epochs = {one: (epoch or 0) + 1 for one, epoch in store.logged.epochs.items()}
            if choice.random() < 0.15:
                store.begin()
            store.take_lease()
            store.bucket.weather.failures = choice.choice([0.0, 0.0, 0.05])
            for _ in range(choice.randint(0, 4)):
                work = await store.ask(drain=True)
                if not work.tier_id:
                    break
                names, failure = await store.uploaded(work, lambda: choice.random() < 0.1)
                store.logged.room = choice.choice([None, None, None, None, 0, 1])
                await store.hand_in(work.tier_id, names, failure)
                if store.logged.room is not None:
                    store.logged.room = None
                    store.logged.epochs = {one: (epoch or 0) + 1 for one, epoch in store.logged.epochs.items()}
            if choice.random() < 0.2:
                store.bucket.weather.failures = 0.0  # the search does not ask again
                for group in range(GROUPS):
                    await store.fetch_remote(group)
                    await store.check_searches(group)
        store.bucket.weather.failures = 0.0
        store.begin()
        set_asking(store, True, True)
        await merged(store, 1)
        await store.upload_all()
        await check_all(store)

    with tempfile.TemporaryDirectory() as directory:
        told(Path(directory), story, seed % 1000, classes=[ASKING, ASKING])
