"""Uploads as a splitter asks for them: what goes next, what counts when, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.harness.handler_of import handler_of
from tests.storage.split.test_real_merges import LINES
from tests.storage.split.tiered_store import GROUPS, PIECE_BYTES, TieredStore

from mainstem.model import PARTITION_BITS, Topic, TopicSettings
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.split import LeaseLost, MergeWaits
from mainstem.rpc.messages.tier import TIER_WORK, AskTier, TierWork
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.split.copying import LOOK_SECONDS, CopyRule, rule_of
from mainstem.storage.split.tier_choice import MOVING_ROW, MovingSums, chosen, waiting
from mainstem.storage.split.tier_log import REST_SECONDS, REST_SECONDS_MAX
from mainstem.storage.store_files.object_names import file_objects
from mainstem.storage.store_files.store_file import JOINED_SUFFIX, StoreFile

Story = Callable[[TieredStore], Awaitable[None]]


def told(root: Path, story: Story, seed: int = 1, **options: object) -> None:
    async def whole() -> None:
        store = TieredStore(root, seed, **options)  # type: ignore[arg-type]  # the test's own
        async with store.opened():
            await story(store)

    asyncio.run(whole())


async def merged(store: TieredStore, splits: int = 8) -> None:
    """Have something to upload: slices split, and all runs merged."""
    for _ in range(splits):
        await store.split()
    while await store.merge(drain=True):
        pass


async def recorded_in_part(store: TieredStore, room: int) -> tuple[TierWork, str]:
    """Upload a unit whose recording loses the leadership after so many commands: the last work, and its outcome."""
    while True:
        work = await work_of(store)
        names, failure = await store.uploaded(work)
        store.logged.room = room
        outcome = await store.hand_in(work.tier_id, names, failure)
        store.logged.room = None
        if outcome != "kept":
            return work, outcome


async def work_of(store: TieredStore) -> TierWork:
    work = await store.ask()
    assert work.tier_id, work
    return work


# --- the choice ------------------------------------------------------------------------------------------


def rows(*spans: tuple[int, int, bool]) -> numpy.ndarray:
    """Spans of ten blocks each, with these bytes in as many files of a hundred, and with runs or without."""
    found = numpy.zeros(len(spans), MOVING_ROW)
    for number, (size, files, runs) in enumerate(spans):
        found[number] = (10 * (number + 1), size, files, runs, False)
    return found


def test_spans_go_in_their_order_up_to_the_first_with_runs() -> None:
    spans = rows(
        (0, 0, False), (100, 1, False), (0, 0, False), (100, 2, False), (0, 0, False), (0, 0, True), (100, 1, False)
    )
    assert chosen(spans, 0, 1_000) == (0, 4), "those without a file are passed, but for the last"
    assert chosen(spans, 0, 100) == (0, 2), "enough"
    assert chosen(spans, 20, 100) == (2, 4)
    assert chosen(spans, 15, 100) == (1, 2), "a span that lies on both sides goes as a whole"
    assert chosen(spans, 40, 100) is None, "runs come next"
    assert chosen(rows((100, 1, True), (100, 1, False)), 0) is None
    assert chosen(rows(), 0) is None
    assert waiting(spans, 20) == (200, 3)


# --- all goes well ---------------------------------------------------------------------------------------


def test_all_that_moves_is_uploaded_and_counts_and_nothing_else(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        local = store.paths()
        lag = (await store.tier_log.waits()).bytes
        assert lag > 0
        await store.upload_all()
        await store.check_remote()
        assert store.paths() == local, "the local files stay"
        assert await store.tier_log.waits() == MergeWaits(0)
        for group in range(GROUPS):
            spans = store.store.manifest.spans(group)
            assert store.logged.position(group).upto == spans[-1].upto
            moving = [file for _a, _u, file in spans.described() if file.may_move]
            assert sum(file.batch_bytes for _a, _u, file in store.counted(group)) == sum(
                file.batch_bytes for file in moving
            )
            assert not store.logged.tier.intended(group)
            assert {file.name for file in moving}.isdisjoint(file.name for file in store.remote_files(group))
        assert sum(len(store.remote_files(group)) for group in range(GROUPS)) > 5
        samples = {sample.name: sample.value for sample in store.tier_log.samples()}
        assert samples["mainstem_remote_copy_lag_bytes"] == 0
        assert samples["mainstem_remote_copy_files_total"] == sum(
            len(store.remote_files(group)) for group in range(GROUPS)
        )
        assert samples["mainstem_remote_copy_errors_total"] == 0
        assert samples["mainstem_remote_copy_last_success_seconds"] == store.clock.now_ms() / 1000

    told(tmp_path, story)


def topic(number: int, **settings: Any) -> Topic:
    return Topic(
        name=f"orders-{number}", number=number, topic_id=uuid.UUID(int=number + 1), partitions=1,
        settings=TopicSettings(**settings),
    )  # fmt: skip


def test_nothing_more_moves_of_a_topic_whose_copying_was_stopped_until_it_goes_on(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        asking, plain = topic(0, remote_storage_enable=True), topic(1)
        stopped = topic(0, remote_storage_enable=True, remote_log_copy_disable=True)
        store.topics = [asking, plain]
        await merged(store)
        while not any(store.remote_files(group) for group in range(GROUPS)):
            assert await store.step() in ("recorded", "kept")
        left = (await store.tier_log.waits()).bytes
        assert left > 0
        store.topics = [stopped, plain]
        store.clock.advance(LOOK_SECONDS)
        store.renew_lease()
        there = [store.remote_files(group) for group in range(GROUPS)]
        assert await store.tier_log.waits() == MergeWaits(0)
        assert await store.step() == ""
        moves = await store.tier_log.moves()
        assert not any(
            moves(file) for group in range(GROUPS) for _, _, file in store.store.manifest.spans(group).described()
        )
        assert [store.remote_files(group) for group in range(GROUPS)] == there, "what is there stays"
        store.topics = [asking, plain]
        store.clock.advance(LOOK_SECONDS)
        store.renew_lease()
        assert (await store.tier_log.waits()).bytes == left
        await store.upload_all()
        await store.check_remote()
        assert await store.tier_log.waits() == MergeWaits(0)

    told(tmp_path, story, piece_bytes=PIECE_BYTES, unit_bytes=PIECE_BYTES)


def pack(first: int, last: int, retention_class: str) -> StoreFile:
    """Of topics from the one to the other number."""
    return StoreFile(
        name="0-1.pack", retention_class=retention_class, bytes=1, batch_bytes=1, batch_count=1, record_count=1,
        queue_count=1, min_timestamp=0, max_timestamp=0, level=1, group=0, first_queue=first << PARTITION_BITS,
        last_queue=last << PARTITION_BITS | 7, first_offset=0,
    )  # fmt: skip


def test_a_file_moves_by_its_class_and_by_the_topics_between_its_first_and_last_queue() -> None:
    def rule(*topics: Topic) -> CopyRule:
        return asyncio.run(rule_of(topics))

    asking, stopped = {"remote_storage_enable": True}, {"remote_storage_enable": True, "remote_log_copy_disable": True}
    gone = {"remote_log_delete_on_disable": True}
    expected = (
        (1, 1, False, False), (1, 2, False, False), (2, 3, True, False), (3, 3, True, True), (1, 4, True, False),
        (4, 4, False, False), (5, 5, True, False), (5, 6, True, True),
    )  # fmt: skip
    for halted in (stopped, gone):
        found = rule(topic(1, **halted), topic(2), topic(3, **asking), topic(4), topic(6, **asking))
        for first, last, of_tier, of_another in expected:
            assert found.moves(pack(first, last, "forever+remote")) is of_tier, (first, last)
            assert found.moves(pack(first, last, "forever")) is of_another, (first, last)
            assert not found.moves(pack(first, last, "compact"))
            assert not found.may_fill(pack(first, last, "internal"))
    found = rule(topic(1), topic(3, **asking))
    assert not found.moves(pack(1, 1, "forever+remote")), "what it was told once is forgotten"
    assert found.moves(pack(2, 2, "forever+remote")), "of an unknown topic the class tells"
    assert not found.moves(pack(2, 2, "forever"))
    assert found.moves(pack(2, 3, "forever")), "unknown topics have no say"
    assert found.may_fill(pack(1, 3, "forever")), "its index tells whether it has something of the one that asks"
    assert not found.may_fill(pack(1, 2, "forever"))
    assert found == CopyRule([3], [1])


def test_rules_differ_by_topics_that_ask_for_something_else_that_are_new_or_gone() -> None:
    before = CopyRule([1, 2, 3], [4, 5, 6])
    assert before.changed_since(CopyRule([3, 2, 1], [6, 5, 4])).tolist() == []
    assert CopyRule([1, 2, 4, 8], [3, 5, 9]).changed_since(before).tolist() == [3, 4, 6, 8, 9]


def of_topics(file: StoreFile) -> set[int]:
    """The numbers between which a file has topics, both included."""
    return set(range(file.first_queue >> PARTITION_BITS, (file.last_queue >> PARTITION_BITS) + 1))


def test_files_that_are_passed_over_are_those_of_which_no_topic_asks(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        known = [file for group in range(GROUPS) for _a, _u, file in store.store.manifest.spans(group).described()]
        assert any(file.may_move and of_topics(file) == {0} for file in known)
        others = [file for file in known if file.may_move and 1 in of_topics(file)]
        store.topics = [topic(0), topic(1, remote_storage_enable=True)]
        store.classes[0] = "forever"
        await store.upload_all()
        await store.check_remote()
        there = [file for group in range(GROUPS) for file in store.remote_files(group)]
        assert all(1 in of_topics(file) for file in there)
        assert sum(file.batch_bytes for file in there) == sum(file.batch_bytes for file in others)

    told(tmp_path, story, classes=("forever+remote", "forever+remote"))


def test_what_is_on_its_way_does_not_count_where_no_topic_of_it_asks_any_more(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        store.topics = [topic(number, remote_storage_enable=True) for number in range(2)]
        work = await work_of(store)
        names, failure = await store.uploaded(work)
        assert any(of_topics(StoreFile.of(one.file)) == {0} for one in work.files)
        store.topics[0] = topic(0)
        store.classes[0] = "forever"
        store.clock.advance(LOOK_SECONDS)
        assert (await store.hand_in(work.tier_id, names, failure)).startswith("refused")
        assert not store.remote_files(work.group)
        store.renew_lease()
        await store.upload_all()
        assert all(1 in of_topics(file) for group in range(GROUPS) for file in store.remote_files(group))
        await store.check_remote()  # what was handed in is deleted

    told(tmp_path, story, classes=("forever+remote", "forever+remote"), unit_bytes=1, piece_bytes=1 << 20)


def test_only_chunks_with_a_topic_that_changed_are_added_up_again(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        spans, sums = store.store.manifest.spans(0), MovingSums()
        both = await sums.of(0, spans, CopyRule([0, 1]))
        added_up = sums.added_up
        assert added_up > 0
        assert (await sums.of(0, spans, CopyRule([0, 1, 2], [3]))).tolist() == both.tolist()
        assert sums.added_up == added_up, "other topics were made"
        one = await sums.of(0, spans, CopyRule([1, 2], [0, 3]))
        assert sums.added_up == 2 * added_up
        assert 0 < int(one["bytes"].sum()) < int(both["bytes"].sum())
        assert (await sums.of(0, spans, CopyRule([0, 1]))).tolist() == both.tolist()

    told(tmp_path, story, classes=("forever+remote", "forever+remote"))


def test_names_are_in_the_log_before_they_are_given_out(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        work = await work_of(store)
        names = {one.name for one in work.files}
        assert names == set(store.logged.tier.intended(work.group))
        assert all(list(one.objects) == file_objects(work.group, one.name) for one in work.files)
        assert msgspec.json.decode(work.store_config, type=ObjectStoreConfig).retry_seconds == 7.0

    told(tmp_path, story)


def objects_of(store: TieredStore) -> Counter[str]:
    """How many objects of files there are, by their suffixes."""
    return Counter(name.rpartition(".")[2] for name in store.bucket.objects)


def test_a_queue_segment_is_one_object_where_level_and_splitter_allow_it(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        store.joined = False
        assert await store.step() in ("kept", "recorded")
        old = objects_of(store)
        assert old["log"] == old["extents"] == old["index"] == old["timeindex"] > 0
        store.joined = True
        work = await store.ask(drain=True, joins=False)
        assert work.tier_id
        assert not any(one.name.endswith(JOINED_SUFFIX) for one in work.files), "the splitter is of an earlier version"
        assert await store.hand_in(work.tier_id, *(await store.uploaded(work))) in ("kept", "recorded")
        before = objects_of(store)
        await store.upload_all()
        after = objects_of(store)
        assert after.total() - before.total() == (after["seg"] + after["pack"]) - before["pack"]
        assert after["seg"] > 0
        await store.check_remote()
        segments = [one for group in range(GROUPS) for one in store.remote_files(group) if one.name[-4:] == ".seg"]
        assert len(segments) == after["seg"]
        assert all(one.bytes > one.batch_bytes for one in segments)

    told(tmp_path, story)


def test_a_segment_of_one_object_counts_with_all_of_its_bytes(tmp_path: Path) -> None:
    """A segment without its index is not whole, nor is one with a part of it."""

    async def story(store: TieredStore) -> None:
        await merged(store)
        while True:
            work = await work_of(store)
            names, failure = await store.uploaded(work)
            joined = [one for one in work.files if one.name.endswith(JOINED_SUFFIX)]
            if joined:
                break
            assert await store.hand_in(work.tier_id, names, failure) in ("kept", "recorded")
        victim = joined[0].objects[0]
        content = store.bucket.objects[victim].content
        for left in (joined[0].file.batch_bytes, len(content) - 64):
            store.bucket.put(victim, content[:left])
            outcome = await store.hand_in(work.tier_id, names, failure)
            assert f"has {left} bytes in the object store, not {len(content)}" in outcome
            store.clock.advance(REST_SECONDS_MAX)
            store.take_lease()
            work = await work_of(store)
            names, failure = await store.uploaded(work)
            joined = [one for one in work.files if one.name.endswith(JOINED_SUFFIX)]
            victim = joined[0].objects[0]
        assert await store.hand_in(work.tier_id, names, failure) in ("kept", "recorded")
        await store.upload_all()
        await store.check_remote()

    told(tmp_path, story)


def test_nothing_is_given_out_without_a_store_below_the_feature_level_or_where_another_node_leads(
    tmp_path: Path,
) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        store.allowed = False
        found = await store.ask()
        assert (found.tier_id, "feature level" in found.failure) == ("", True)
        store.allowed = True
        store.logged.epochs = dict.fromkeys(range(GROUPS))
        store.begin()
        assert await store.ask() == TierWork()
        assert await store.tier_log.waits() == MergeWaits(0)
        store.logged.epochs[1] = 3
        work = await work_of(store)
        assert work.group == 1

    told(tmp_path, story)


def test_topics_that_do_not_move_cost_no_change_of_the_log(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        assert await store.ask() == TierWork()
        assert store.logged.log == []

    told(tmp_path, story, classes=("forever", "compact"))


def test_runs_stop_it(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        await store.split()
        await store.upload_all()
        before = [store.logged.position(group).upto for group in range(GROUPS)]
        assert before == [8, 8]
        assert await store.ask() == TierWork()
        await merged(store, 0)
        await store.upload_all()
        assert [store.logged.position(group).upto for group in range(GROUPS)] == [9, 9]
        await store.check_remote()

    told(tmp_path, story)


# --- what goes wrong -------------------------------------------------------------------------------------


def test_what_was_handed_in_twice_is_recorded_once(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        outcomes = set()
        while (work := await store.ask()).tier_id:
            names, failure = await store.uploaded(work)
            outcome = await store.hand_in(work.tier_id, names, failure)
            commands = len(store.logged.log)
            assert await store.hand_in(work.tier_id, names, failure) == outcome
            assert len(store.logged.log) == commands
            outcomes.add(outcome)
        assert outcomes == {"kept", "recorded"}
        await store.check_remote()

    told(tmp_path, story)


def test_a_lost_lease_ends_the_piece_and_the_next_splitter_gets_it_under_other_names(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        first = await work_of(store)
        names, _ = await store.uploaded(first)
        late = store.held
        store.take_lease()
        second = await work_of(store)
        assert [one.file for one in second.files] == [one.file for one in first.files]
        assert not {one.name for one in second.files} & set(names)
        assert not set(store.bucket.objects), "what the first one uploaded is deleted"
        store.held, newer = late, store.held
        with pytest.raises(LeaseLost):
            await store.hand_in(first.tier_id, names)
        store.held = newer
        assert (await store.hand_in(first.tier_id, names)).startswith("refused: ")
        assert await store.hand_in(second.tier_id, *(await store.uploaded(second))) in ("kept", "recorded")
        await store.upload_all()
        await store.check_remote()

    told(tmp_path, story)


def test_files_whose_names_the_upkeep_took_back_are_uploaded_anew(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        work = await work_of(store)
        names, _ = await store.uploaded(work)
        assert await store.hand_in(work.tier_id, names) == "kept"
        assert await store.logged.record(work.group, gone=names[:1]) == "recorded"
        store.bucket.remove(work.files[0].objects[0])
        await store.upload_all()
        counted = {file.name for file in store.remote_files(work.group)}
        assert set(names) - counted == {names[0]}
        await store.check_remote()

    told(tmp_path, story)


def test_a_store_that_is_out_is_left_alone_for_longer_and_longer_and_then_gets_all(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        work = await work_of(store)
        store.bucket.weather.down = True
        names, failure = await store.uploaded(work)
        assert not names
        assert failure
        assert await store.hand_in(work.tier_id, names, failure) == "kept"
        commands = len(store.logged.log)
        for attempt in range(12):
            asked = store.bucket.asked
            store.clock.advance(min(REST_SECONDS * 2**attempt, REST_SECONDS_MAX) - 0.5)
            store.renew_lease()
            assert await store.ask() == TierWork(), "it rests"
            assert await store.tier_log.waits() == MergeWaits(0), "no splitter is started for it"
            assert store.bucket.asked == asked
            store.clock.advance(0.5)
            found = await store.ask()
            assert not found.tier_id
            assert "no answer" in found.failure
            assert store.bucket.asked == asked + 1, "one request finds out"
        assert len(store.logged.log) == commands, "the log does not grow while it is out"
        assert (await store.ask(drain=True)).failure, "who asks for all of it is told"
        store.bucket.weather.down = False
        store.clock.advance(REST_SECONDS_MAX)
        store.take_lease()
        await store.upload_all()
        await store.check_remote()

    told(tmp_path, story)


def test_what_was_uploaded_before_a_failure_is_not_uploaded_again(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        work = await work_of(store)
        assert len(work.files) > 1
        names, failure = await store.uploaded(work, iter([False, True]).__next__)
        assert len(names) == 1
        assert await store.hand_in(work.tier_id, names, failure) == "kept"
        assert store.tier_log.failures == 1
        store.clock.advance(REST_SECONDS)
        store.take_lease()
        again = await work_of(store)
        assert work.files[0].file not in [one.file for one in again.files]
        assert await store.hand_in(again.tier_id, *(await store.uploaded(again))) in ("kept", "recorded")
        await store.upload_all()
        assert names[0] in {file.name for file in store.remote_files(work.group)}
        await store.check_remote()

    told(tmp_path, story, piece_bytes=4 * PIECE_BYTES)


def test_nothing_counts_that_the_store_has_not_whole(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        for spoil in ("lose", "shorten"):
            work = await work_of(store)
            names, _ = await store.uploaded(work)
            victim = work.files[-1].objects[0]
            content = store.bucket.objects[victim].content
            store.bucket.lose(victim)
            if spoil == "shorten":
                store.bucket.put(victim, content[:-1])
            assert (await store.hand_in(work.tier_id, names)).startswith("refused: ")
            assert store.remote_files(work.group) == []
            store.clock.advance(REST_SECONDS_MAX)
            store.take_lease()
        await store.upload_all()
        await store.check_remote()

    told(tmp_path, story)


def test_other_names_than_were_given_out_are_refused(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        work = await work_of(store)
        names, _ = await store.uploaded(work)
        assert (await store.hand_in(work.tier_id, [*names, "0-x.pack"])).startswith("refused: other files")
        await store.upload_all()
        await store.check_remote()

    told(tmp_path, story)


def test_a_new_term_begins_anew_and_leaves_what_was_uploaded_in_another_to_the_next_leader(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        assert await store.step() == "kept"
        work = await work_of(store)
        names, _ = await store.uploaded(work)
        store.logged.epochs = dict.fromkeys(range(GROUPS), 2)
        assert (await store.hand_in(work.tier_id, names)).startswith(("kept", "refused"))
        earlier = set(store.bucket.objects)
        store.logged.epochs = dict.fromkeys(range(GROUPS), 3)
        await store.upload_all()
        counted = {file.name for group in range(GROUPS) for file in store.remote_files(group)}
        assert not counted & set(names)
        assert earlier <= set(store.bucket.objects), "they are the next leader's to delete, by the log"
        await store.check_remote()

    told(tmp_path, story)


@pytest.mark.parametrize("room", range(4))
def test_half_of_a_unit_that_counts_goes_before_the_next_one_begins(tmp_path: Path, room: int) -> None:
    """The leadership is lost after so many commands of the recording."""

    async def story(store: TieredStore) -> None:
        await merged(store, 16)
        work, outcome = await recorded_in_part(store, room)
        await store.logged.drained([work.group])
        half = {file.name for file in store.remote_files(work.group)}
        assert outcome.startswith("refused")
        assert bool(half) == bool(room)
        assert store.logged.position(work.group).upto == 0
        store.logged.epochs = dict.fromkeys(range(GROUPS), 2)
        await store.upload_all()
        await store.check_remote()
        assert half == set(store.logged.tier.leaving(work.group))
        spans = store.logged.manifest.spans(work.group)
        assert all(one.upto <= other.after for one, other in itertools.pairwise(spans))

    told(tmp_path, story, unit_bytes=4_000_000)


def test_what_another_leader_counts_while_the_manifest_is_written_is_no_half_of_a_unit(tmp_path: Path) -> None:
    """A leader that looks for halves is deposed, and leads again, before it knows what its manifest has."""

    async def story(store: TieredStore) -> None:
        await merged(store, 16)
        work, _ = await recorded_in_part(store, 1)
        store.logged.epochs = dict.fromkeys(range(GROUPS), 2)
        drained = store.logged.drained

        async def deposed_meanwhile(groups: Iterable[int]) -> None:
            store.logged.decide_late()
            store.logged.epochs = dict.fromkeys(range(GROUPS), 4)
            await drained(groups)

        store.logged.drained = deposed_meanwhile  # type: ignore[method-assign]
        await store.upload_all()
        assert store.logged.position(work.group).upto > 0
        assert not store.logged.tier.leaving(work.group)
        await store.check_remote()

    told(tmp_path, story, unit_bytes=4_000_000)


@pytest.mark.parametrize("room", range(3))
def test_what_counts_by_the_next_leaders_log_is_not_deleted_as_given_up(tmp_path: Path, room: int) -> None:
    """The leadership is lost after so many commands of the recording; then this node leads again, and its log has the
    others as well."""

    async def story(store: TieredStore) -> None:
        await merged(store, 16)
        work, outcome = await recorded_in_part(store, room)
        assert outcome == "refused: the leadership was lost"
        store.logged.epochs = dict.fromkeys(range(GROUPS), 2)
        store.logged.decide_late()
        assert store.logged.position(work.group).upto > 0
        await merged(store)
        await store.upload_all()
        await store.check_remote()

    told(tmp_path, story, unit_bytes=4_000_000)


def test_a_file_that_changed_meanwhile_is_not_recorded_and_what_took_its_place_is_uploaded(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        work = await work_of(store)
        names, _ = await store.uploaded(work)
        victim = work.files[0].file.name
        group = work.group
        spans = store.store.manifest.spans(group)
        entries = [(after, upto, file) for after, upto, file in spans.described() if file.name != victim]
        await store.store.changes.supersede(group, store.store.manifest.position(group).position, entries)
        outcome = await store.hand_in(work.tier_id, names)
        while outcome == "kept":
            outcome = await store.step()
        assert not {file.name for file in store.remote_files(group)} & set(names)
        await store.upload_all()
        await store.check_remote()

    told(tmp_path, story)


def test_a_damaged_file_waits_until_it_is_mended(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        work = await work_of(store)
        store.log.damaged(work.tier_id, work.files[0].file.name, "a bit is gone")
        assert await store.hand_in(work.tier_id, []) == "kept"
        again = await store.ask()
        assert again.group != work.group, "the other write group goes on"
        await store.upload_all()
        assert store.remote_files(work.group) == []
        store.store.damaged.whole_again(work.files[0].file.name, "mended")
        store.take_lease()
        await store.upload_all()
        await store.check_remote()

    told(tmp_path, story)


# --- beside merges and retention -------------------------------------------------------------------------


def test_merges_wait_while_files_are_given_out_and_keep_what_is_uploaded_apart(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        work = await work_of(store)
        assert store.store.merges.holds_of(work.group)
        for _ in range(3):
            await store.split()
        found = await store.log.work(lambda: True, [work.tier_id], drain=True)
        assert found.merge_id
        assert found.group != work.group
        store.store.merges.give_up(but=[work.tier_id])
        await store.hand_in(work.tier_id, *(await store.uploaded(work)))
        await store.upload_all()

    told(tmp_path, story)


def test_what_is_uploaded_is_not_merged_with_what_is_not(tmp_path: Path) -> None:
    """Spans are merged once more when there are enough of them, which are on both sides of where the tier has come."""

    async def story(store: TieredStore) -> None:
        store.log.lines = LINES._replace(level_two_bytes=400_000)
        for _ in range(2):
            await merged(store, 1)
        await store.upload_all()
        uploaded = [store.logged.position(group).upto for group in range(GROUPS)]
        for _ in range(14):
            await merged(store, 1)
        for group, upto in enumerate(uploaded):
            spans = store.store.manifest.spans(group)
            assert len(spans) < 16, "some were merged"
            assert not any(span.after < upto < span.upto for span in spans)

    told(tmp_path, story)


def test_retention_keeps_what_is_given_out(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        await merged(store)
        work = await work_of(store)
        names, _ = await store.uploaded(work)
        gone = numpy.iinfo(numpy.int64).max
        dropped = await store.store.retention.retain(lambda queue_ids: numpy.full(len(queue_ids), gone))
        assert dropped
        assert not {file.name for file in dropped} & {one.file.name for one in work.files}
        assert await store.hand_in(work.tier_id, names) in ("kept", "recorded")

    told(tmp_path, story)


@settings(max_examples=examples(25))
@given(st.integers(0, 2**32))
def test_f_whatever_happens_the_tier_has_a_prefix_of_the_log_whole_and_nothing_lies_there_unknown(seed: int) -> None:
    choice, forms = random.Random(seed), random.Random(seed)

    async def story(store: TieredStore) -> None:
        for _ in range(choice.randint(3, 14)):
            for _ in range(choice.randint(0, 3)):
                await store.split()
            for _ in range(choice.randint(0, 2)):
                if not await store.merge(drain=choice.random() < 0.7):
                    break
            if choice.random() < 0.15:
                store.logged.epochs = {one: (epoch or 0) + 1 for one, epoch in store.logged.epochs.items()}
            if choice.random() < 0.1:
                store.logged.epochs = {one: (epoch or 0) + 1 for one, epoch in store.logged.epochs.items()}
                store.begin()
            if choice.random() < 0.2:
                store.take_lease()
            store.bucket.weather.down = choice.random() < 0.15
            store.bucket.weather.failures = choice.choice([0.0, 0.0, 0.05])
            store.joined = forms.random() < 0.6
            work = await store.ask(drain=choice.random() < 0.5, joins=forms.random() < 0.8)
            if not work.tier_id or choice.random() < 0.15:
                continue
            names, failure = await store.uploaded(work, lambda: choice.random() < 0.1)
            if choice.random() < 0.1:
                store.take_lease()
                continue
            store.logged.room = choice.choice([None, None, None, 0, 1, 2])
            await store.hand_in(work.tier_id, names, failure)
            if store.logged.room is not None:
                store.logged.room = None
                store.logged.epochs = {one: (epoch or 0) + 1 for one, epoch in store.logged.epochs.items()}
        store.bucket.weather.down, store.bucket.weather.failures = False, 0.0
        while await store.merge(drain=True):
            pass
        await store.upload_all()
        for group in range(GROUPS):
            if store.logged.position(group).upto:
                assert await store.ask() == TierWork()
        await store.check_remote()
        for group in range(GROUPS):
            spans = store.store.manifest.spans(group)
            moving = [span.upto for span in spans if any(store.store.manifest.files[one.name].may_move for one in span)]
            assert store.logged.position(group).upto == max(moving, default=0)

    with tempfile.TemporaryDirectory() as directory:
        told(Path(directory), story, seed % 1000)


def test_a_question_under_a_lease_that_ended_is_refused(tmp_path: Path) -> None:
    async def story(store: TieredStore) -> None:
        late = store.held
        store.take_lease()
        with pytest.raises(LeaseLost):
            await handler_of(store.service, TIER_WORK)(RpcCall(AskTier(lease=late), b"", "splitter"))

    told(tmp_path, story)
