"""The directory that a queue store has on a node's own machine, and what a node with a shared store remembers of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.storage.small_node import SmallNode, simulated

from mainstem.node.config import NodeConfig
from mainstem.node.storage_role.store_directory import NOTE_NAME, StoreUnsupported, note_store, store_directory


def test_a_directory_is_disk_2_and_is_made(tmp_path: Path) -> None:
    for store_dir in (str(tmp_path / "a"), f"file://{tmp_path / 'b'}"):
        config = NodeConfig(store_dir=store_dir)
        found = store_directory(config, tmp_path / "write")
        note_store(config, found)
        assert found == Path(store_dir.removeprefix("file://"))
        assert list(found.iterdir()) == []


def test_a_shared_store_has_a_cache_on_disk_1(tmp_path: Path) -> None:
    for write_dir, config in (
        (tmp_path / "1", NodeConfig(store_dir="s3://bucket/x")),
        (tmp_path / "2", NodeConfig(store_dir=str(tmp_path / "shared"), shared_store=True)),
    ):
        found = store_directory(config, write_dir)
        assert found == write_dir / "cache"
        note_store(config, found)
        note_store(config, found)
        assert store_directory(config, write_dir) == found
    assert not (tmp_path / "shared").exists(), "it may be a mount that is missing"


def test_a_node_stays_with_the_shared_store_that_it_has(tmp_path: Path) -> None:
    config = NodeConfig(store_dir="s3://bucket/x")
    note_store(config, store_directory(config, tmp_path))
    with pytest.raises(StoreUnsupported, match=r"is disk 1 of a node whose queue store is shared, at s3://bucket/x\."):
        store_directory(NodeConfig(store_dir=str(tmp_path / "own")), tmp_path)
    assert not (tmp_path / "own").exists()
    moved = NodeConfig(store_dir="s3://bucket/y")
    with pytest.raises(StoreUnsupported, match=r"is s3://bucket/x\. Set store_dir to that\. If all of it was moved"):
        store_directory(moved, tmp_path)
    (tmp_path / "cache" / NOTE_NAME).unlink()
    note_store(moved, store_directory(moved, tmp_path))
    assert store_directory(moved, tmp_path) == tmp_path / "cache"


@pytest.mark.parametrize("splits", [False, True])
def test_a_node_that_has_files_on_a_disk_2_does_not_leave_them_for_a_shared_store(tmp_path: Path, splits: bool) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(1)
        if splits:
            assert await node.split()

    simulated(tmp_path, story)
    config = NodeConfig(store_dir="s3://bucket/x")
    if not splits:
        assert store_directory(config, tmp_path) == tmp_path / "cache"
        return
    with pytest.raises(StoreUnsupported, match="has a disk 2 of its own with 1 store files"):
        store_directory(config, tmp_path)
    assert not (tmp_path / "cache").exists()
