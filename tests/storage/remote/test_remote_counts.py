"""The part of a write group in the remote tier, and the part that is to move there: counted against the manifests by
hand."""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec
import pytest
from tests.storage.remote.remote_files import packed
from tests.storage.remote.test_remote_tier import upload
from tests.storage.small_node import SmallNode, simulated

from mainstem.storage.queue_store.manifest.database.manifest_database import WriteGroupPosition
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.usage import levels
from mainstem.storage.queue_store.usage.levels import LevelCount
from mainstem.storage.remote.decided import remote_counts
from mainstem.storage.store_files.store_file import FileKind


def test_files_that_may_move_wait_until_the_log_says_that_their_blocks_are_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_counts, "FILES_PER_TURN", 1)
    monkeypatch.setattr(levels, "FILES_PER_TURN", 1)

    async def story(node: SmallNode) -> None:
        local = await Manifest.open(str(tmp_path / "local.sqlite"))
        await local.adopt(uuid.uuid4(), 0)
        old, new, newer = packed("old"), packed("new"), packed("newer")
        stays = msgspec.structs.replace(packed("stays"), retention_class="forever")
        entries = [(0, 10, old), (10, 20, new), (20, 30, newer), (20, 30, stays)]
        await local.change(0, [], entries, WriteGroupPosition(30, 30), [])
        tier = node.storage.remote

        counts = await remote_counts.of_group(tier, local, 0, lambda file: file.may_move)
        assert (counts.levels, counts.waiting_files) == ([], 3)
        assert counts.waiting_bytes == old.batch_bytes + new.batch_bytes + newer.batch_bytes

        await upload(node, 10, packed("uploaded"))
        counts = await remote_counts.of_group(tier, local, 0, lambda file: file.may_move)
        there = packed("uploaded")
        assert counts.levels == [LevelCount(there.level, FileKind.PACKED, 1, there.bytes, there.batch_bytes)]
        assert (counts.waiting_files, counts.waiting_bytes) == (2, new.batch_bytes + newer.batch_bytes)

        await upload(node, 30, packed("the rest"), after=10)
        counts = await remote_counts.of_group(tier, local, 0, lambda file: file.may_move)
        assert (counts.waiting_files, counts.waiting_bytes) == (0, 0)
        await local.close()

    simulated(tmp_path, story)
