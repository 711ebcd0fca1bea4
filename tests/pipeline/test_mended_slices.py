"""A task that meets a damaged block tells the node, and splits what the node has put right."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.splitting.split_log import SplitJournal
from tests.fakes.splitting.split_node import SplitNode

from mainstem.pipeline.errors import SliceDamaged
from mainstem.pipeline.split.source import SlicePartition, split_partition
from mainstem.pipeline.split.split_plan import SplitSettings
from mainstem.rpc.messages.split import WaitsFor
from mainstem.rpc.wire.identity import host_identity
from mainstem.storage.journal.encoding.format import position_of

CLASSES = {0: "7d"}


def flip(journal: SplitJournal, sequence: int, byte: int) -> None:
    path = journal.segment(sequence)
    content = bytearray(path.read_bytes())
    content[byte] ^= 0x10
    path.write_bytes(content)


def settings_of(node: SplitNode) -> SplitSettings:
    return SplitSettings(
        rpc=f"127.0.0.1:{node.port}", runs_dir=str(node.store_dir / "runs"), bytes_per_trigger=1 << 20,
        slice_bytes=1 << 20, bytes_per_second=0, start_bytes=0, start_age_seconds=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("mends", [True, False])
def test_a_task_says_where_it_met_damage_and_goes_on_when_that_is_put_right(tmp_path: Path, mends: bool) -> None:
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes=CLASSES)
    journal.append(0, [(0, b"a" * 200)])
    block = journal.append(0, [(0, b"b" * 200)])
    place = position_of(block.sequence, block.start)
    (work,) = journal.slices({}, {0: 2}, 1 << 20)
    flip(journal, block.sequence, block.end - 60)

    def repairs(position: int) -> bool:
        assert position == place
        if mends:
            flip(journal, block.sequence, block.end - 60)
        return mends

    journal.repairs = repairs
    with SplitNode(journal, tmp_path) as node:
        partition = SlicePartition(0, work, host_identity())
        if mends:
            assert split_partition(partition, settings_of(node)).batches == 2
        else:
            with pytest.raises(SliceDamaged):
                split_partition(partition, settings_of(node))
        assert journal.damage_met == [place]


def test_the_status_names_what_waits(tmp_path: Path) -> None:
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes=CLASSES)
    journal.append(0, [(0, b"a")])
    journal.waits.append(WaitsFor(0, 1, "segment 1 at byte 4096: block 1: its payload fails its CRC", 0))
    with SplitNode(journal, tmp_path) as node:
        (waits,) = node.service.status()["damaged_blocks"]
        assert (waits["group"], waits["block"]) == (0, 1)
        assert "byte 4096" in waits["fault"]
