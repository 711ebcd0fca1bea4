"""The remote tier of a node: decided by the log, written behind it, the same after every end of a life."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.storage.remote.remote_files import packed, span
from tests.storage.small_node import SmallNode, simulated

from mainstem.model import Durability, FeatureLevel
from mainstem.storage.errors import StorageError
from mainstem.storage.remote.decided.remote_state import Noted, Notes, RemotePosition
from mainstem.storage.remote.decided.remote_tier import RETRY_SECONDS, RemoteTier
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.upkeep.remote_files import TierFiles
from mainstem.storage.write_groups.control import RemoteChanged

A, B, C = (packed(name) for name in "abc")


def files_of(tier: RemoteTier, group: int = 0) -> list[tuple[int, int, StoreFile]]:
    return list(tier.manifest.spans(group).described())


async def upload(node: SmallNode, upto: int, *files: StoreFile, after: int = 0) -> None:
    """Have these files count, as if somebody had uploaded them."""
    tier = node.storage.remote
    assert await tier.record(0, intended=[file.name for file in files]) == "recorded"
    assert await tier.record(0, upto=upto, spans=[span(after, upto, *files)]) == "recorded"


def manifest_of(node: SmallNode) -> Path:
    return node.manifest_path.with_name("remote-manifest.sqlite")


def meddle(node: SmallNode, *statements: str) -> None:
    with sqlite3.connect(manifest_of(node)) as other:
        for statement in statements:
            other.execute(statement)
    other.close()


FULL = "CREATE TRIGGER full BEFORE INSERT ON files BEGIN SELECT RAISE(ABORT, 'full'); END"


def test_what_was_recorded_counts_at_once_and_after_restarts(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await upload(node, 10, A, B)
        await upload(node, 20, C, after=10)
        assert await node.storage.remote.record(0, gone=[A.name], intended=["d.pack"]) == "recorded"
        for end in (node.restart, node.crash, node.crash):
            tier = node.storage.remote
            assert tier.position(0) == RemotePosition(5, tier.position(0).epoch, 20)
            assert files_of(tier) == [(0, 10, B), (10, 20, C)]
            assert list(tier.leaving(0)) == [A.name]
            assert list(tier.intended(0)) == ["d.pack"]
            assert tier.manifest.position(0).position == 20
            await end()
            if end == node.crash:
                await node.start()

    simulated(tmp_path, story)


def test_the_tiers_files_and_how_far_they_reach_are_of_one_moment(tmp_path: Path) -> None:
    """A local copy that was compared with a position ahead of the files would be taken for one that the tier lacks."""

    async def story(node: SmallNode) -> None:
        tier = node.storage.remote
        files = TierFiles(tier, None)
        await upload(node, 10, A)
        assert await tier.record(0, intended=[B.name]) == "recorded"
        meddle(node, FULL)
        with pytest.raises(StorageError, match="full"):
            await tier.record(0, upto=20, spans=[span(10, 20, B)])
        assert tier.position(0).upto == 20
        assert (files.upto(0), files_of(tier)) == (10, [(0, 10, A)])
        meddle(node, "DROP TRIGGER full")
        await asyncio.sleep(2 * RETRY_SECONDS)
        await tier.drained()
        assert (files.upto(0), files_of(tier)) == (20, [(0, 10, A), (10, 20, B)])

    simulated(tmp_path, story)


def test_a_node_that_never_used_the_tier_has_no_manifest_of_it(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(3)
        await node.restart()
        assert not manifest_of(node).exists()
        await upload(node, 10, A)
        assert manifest_of(node).exists()

    simulated(tmp_path, story)


def test_what_a_crash_took_before_it_was_written_is_applied_again(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await upload(node, 10, A)
        assert await node.storage.remote.record(0, intended=[B.name, C.name]) == "recorded"
        meddle(node, FULL)
        with pytest.raises(StorageError, match="full"):
            await node.storage.remote.record(0, upto=20, spans=[span(10, 20, B)])
        assert node.storage.remote.position(0).number == 4
        assert files_of(node.storage.remote) == [(0, 10, A)]
        assert node.storage.failure is not None
        await node.crash()
        meddle(node, "DROP TRIGGER full")
        await node.start()
        tier = node.storage.remote
        await tier.drained([0])
        assert tier.position(0).number == 4
        assert files_of(tier) == [(0, 10, A), (10, 20, B)]
        assert list(tier.intended(0)) == [C.name]

    simulated(tmp_path, story)


def test_a_manifest_that_cannot_be_written_is_tried_again_and_no_checkpoint_relies_on_it(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await upload(node, 10, A)
        tier = node.storage.remote
        assert await tier.record(0, intended=[B.name]) == "recorded"
        meddle(node, FULL)
        with pytest.raises(StorageError, match="full"):
            await tier.record(0, upto=20, spans=[span(10, 20, B)])
        saved = node.storage.checkpointer.saved
        with pytest.raises(StorageError, match="full"):
            await node.storage.checkpointer.save()
        assert node.storage.checkpointer.saved == saved
        with pytest.raises(StorageError, match="full"):
            await tier.image(0)
        meddle(node, "DROP TRIGGER full")
        await asyncio.sleep(2 * RETRY_SECONDS)
        await tier.drained()
        assert node.storage.failure is None
        assert files_of(tier) == [(0, 10, A), (10, 20, B)]
        await node.storage.checkpointer.save()
        assert node.storage.checkpointer.saved == saved + 1

    simulated(tmp_path, story)


def test_the_manifest_never_knows_more_than_the_journal(tmp_path: Path) -> None:
    """Otherwise a crash under `async` durability would leave changes that the log of no replica has."""

    def prepare(node: SmallNode) -> None:
        node.journal_config = msgspec.structs.replace(
            node.journal_config, durability=Durability.ASYNC, flush_interval_seconds=1e6
        )

    async def story(node: SmallNode) -> None:
        await upload(node, 10, A)
        assert node.storage.journal.durable_end == node.storage.journal.end
        applied = node.storage.groups[0].applied_index
        await node.crash()
        await node.start()
        assert node.storage.groups[0].applied_index > applied
        assert files_of(node.storage.remote) == [(0, 10, A)]

    simulated(tmp_path, story, prepare)


def test_only_an_intended_file_of_this_term_comes_to_count(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        tier = node.storage.remote
        assert await tier.record(0, intended=[A.name]) == "recorded"
        assert "was not intended" in await tier.record(0, upto=10, spans=[span(0, 10, A, B)])
        assert tier.position(0).number == 1, "a change is refused as a whole"
        first = tier.position(0).epoch
        await node.restart()
        tier = node.storage.remote
        said = await tier.record(0, upto=10, spans=[span(0, 10, A)])
        assert said.startswith("refused: a.pack was not intended by the leader of term"), said
        assert tier.intended(0)[A.name].epoch == first
        assert await tier.record(0, deleted=[A.name]) == "recorded"
        assert not tier.intended(0)
        assert tier.position(0).epoch > first

    simulated(tmp_path, story)


def test_a_leader_of_a_term_that_is_over_changes_nothing(tmp_path: Path) -> None:
    """Its command is in the log, and every replica passes it over."""

    async def story(node: SmallNode) -> None:
        await upload(node, 10, A)
        epoch = node.storage.remote.position(0).epoch
        await node.restart()
        assert await node.storage.remote.record(0, intended=[B.name]) == "recorded"
        (group,) = node.storage.groups
        late = RemoteChanged(4, epoch, 10, gone=(A.name,))
        outcome = group.propose([late])
        node.storage.write_loop.wake()
        assert "was followed by that of term" in (await outcome)[0]
        again = group.propose([RemoteChanged(3, epoch + 9, 10, gone=(A.name,))])
        gap = group.propose([RemoteChanged(9, epoch + 9, 10, gone=(A.name,))])
        node.storage.write_loop.wake()
        assert await again == ["replayed"]
        assert "does not follow" in (await gap)[0]
        assert files_of(node.storage.remote) == [(0, 10, A)]

    simulated(tmp_path, story)


def test_changes_that_are_recorded_together_follow_each_other(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        tier = node.storage.remote
        said = await asyncio.gather(*(tier.record(0, intended=[f"{number}.pack"]) for number in range(20)))
        assert said == ["recorded"] * 20
        assert tier.position(0).number == 20
        assert len(tier.intended(0)) == 20

    simulated(tmp_path, story)


def test_a_change_of_many_files_takes_many_blocks(tmp_path: Path) -> None:
    files = [packed(f"{number:032x}", first_queue=number << 32) for number in range(1, 1500)]

    async def story(node: SmallNode) -> None:
        await upload(node, 10, *files)
        tier = node.storage.remote
        assert tier.position(0).upto == 10
        assert tier.position(0).number > 50
        assert files_of(tier) == [(0, 10, file) for file in files]
        assert len(tier.manifest.spans(0)) == 1, "one span, however many changes brought it"
        assert await tier.record(0, gone=[file.name for file in files]) == "recorded"
        assert not tier.manifest.files
        assert len(tier.leaving(0)) == len(files)
        await node.restart()
        assert len(node.storage.remote.leaving(0)) == len(files)

    simulated(tmp_path, story)


def test_nothing_is_recorded_before_all_nodes_can_read_it(tmp_path: Path) -> None:
    def prepare(node: SmallNode) -> None:
        node.level = FeatureLevel.MERGED

    async def story(node: SmallNode) -> None:
        said = await node.storage.remote.record(0, intended=[A.name])
        assert said == "refused: the cluster's feature level does not allow files in the remote tier"
        node.level = FeatureLevel.TIERED
        assert await node.storage.remote.record(0, intended=[A.name]) == "recorded"

    simulated(tmp_path, story, prepare)


def test_a_node_that_does_not_lead_records_nothing(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        assert "does not lead" in await node.storage.remote.record(7, intended=[A.name])
        node.storage.groups[0].serving = False
        assert "is not led by this node" in await node.storage.remote.record(0, intended=[A.name])
        node.storage.groups[0].serving = True

    simulated(tmp_path, story)


def test_what_is_decided_counts_before_it_is_written(tmp_path: Path) -> None:
    async def story() -> None:
        tier = await RemoteTier.open(str(tmp_path / "remote.sqlite"), lambda: 5)
        assert tier.applied(0, RemoteChanged(1, 1, 0, intended=(A.name, B.name))) == "recorded"
        assert tier.applied(0, RemoteChanged(2, 1, 10, (span(0, 10, A, B),))) == "recorded"
        assert tier.counts(0, A.name)
        assert not tier.counts(1, A.name)
        assert tier.applied(0, RemoteChanged(3, 1, 10, gone=(A.name,))) == "recorded"
        assert not tier.counts(0, A.name)
        assert tier.leaving(0) == {A.name: Noted(1, 5)}
        assert not tier.manifest.files
        writing = asyncio.create_task(tier.run())
        await tier.drained([0])
        assert files_of(tier) == [(0, 10, B)]
        writing.cancel()
        await asyncio.wait([writing])
        assert tier.applied(0, RemoteChanged(4, 1, 20)) == "recorded"
        with pytest.raises(StorageError, match="closed"):
            await tier.drained([0])
        await tier.drained([1])
        await tier.close()

    asyncio.run(story())


# --- the manifest is not what it was -------------------------------------------------------------------------


def removed(node: SmallNode) -> None:
    manifest_of(node).unlink()


def another_number(node: SmallNode) -> None:
    meddle(node, "UPDATE remote_positions SET number = 1")


def another_name(node: SmallNode) -> None:
    meddle(node, "UPDATE remote_names SET name = 'd.pack'")


def one_forgotten(node: SmallNode) -> None:
    meddle(node, "DELETE FROM remote_names")


def a_file_less(node: SmallNode) -> None:
    meddle(node, "PRAGMA foreign_keys = ON", "DELETE FROM files WHERE name = 'a.pack'")


@pytest.mark.parametrize("harm", [removed, another_number, another_name, one_forgotten, a_file_less])
def test_a_manifest_that_was_changed_or_lost_is_refused(tmp_path: Path, harm: Callable[[SmallNode], None]) -> None:
    async def story(node: SmallNode) -> None:
        await upload(node, 10, A)
        assert await node.storage.remote.record(0, intended=[B.name]) == "recorded"
        await node.storage.close()
        kept = manifest_of(node).read_bytes()
        harm(node)
        with pytest.raises(StorageError, match=r"remote.*[Rr]estore"):
            await node.start()
        manifest_of(node).write_bytes(kept)
        await node.start()
        assert files_of(node.storage.remote) == [(0, 10, A)]

    simulated(tmp_path, story)


# --- snapshots, and replicas that leave ----------------------------------------------------------------------


def test_an_image_of_another_replica_takes_the_place_of_all_there_was(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await upload(node, 10, A, B)
        assert await node.storage.remote.record(0, gone=[A.name], intended=["d.pack"]) == "recorded"
        tier = node.storage.remote
        position = RemotePosition(9, 5, 30)
        notes = Notes({"e.pack": Noted(4, 7)}, {"f.pack": Noted(5, 8)})
        await tier.supersede(0, position, notes, [(0, 10, B), (10, 30, C)])
        for _ in range(2):
            assert tier.position(0) == position
            assert (tier.intended(0), tier.leaving(0)) == (notes.intended, notes.leaving)
            assert files_of(tier) == [(0, 10, B), (10, 30, C)]
            assert await tier.image(0) == (position, notes, tier.manifest.spans(0))
            await node.restart()
            tier = node.storage.remote
        await tier.forget(0)
        assert tier.position(0) == RemotePosition(0, 0, 0)
        assert not tier.manifest.files
        assert (await tier.image(0))[1] == Notes({}, {})
        await tier.supersede(0, position, Notes({}, {}), [])

    simulated(tmp_path, story)
