"""Reads runs back, straight from `docs/formats.md`'s words and independent of the queue store's readers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import google_crc32c
import numpy

from mainstem.storage.extents.extent_format import EXTENT_ROW, FRAME_BYTES, RUN_MAGIC, FileFrame


def batches_in(extent: bytes) -> list[bytes]:
    """The record batches that lie one after the other in these bytes."""
    batches, position = [], 0
    while position < len(extent):
        length = int.from_bytes(extent[position + 8 : position + 12], "big") + 12
        batches.append(extent[position : position + length])
        position += length
    assert position == len(extent)
    return batches


def rows_and_aborted(data: bytes, footer: FileFrame) -> tuple[bytes, bytes]:
    """The index rows of a file, and what lies between them and the footer."""
    end = footer.rows_position + 64 * footer.row_count
    return data[footer.rows_position : end], data[end:-FRAME_BYTES]


def check_aborted(content: bytes, footer: FileFrame, position: int) -> None:
    """The index of aborted transactions, from this position on: not there in version 1, empty in version 2."""
    if footer.version == 1:
        assert content == b""
    else:
        found = FileFrame.unpack(content, int.from_bytes(b"MSABT1", "little"), "aborted transactions")
        assert found == FileFrame(found.magic, 0, position, 0, 0, -1, -1, footer.name_crc, 2)


def read_run(path: Path) -> dict[int, list[bytes]]:
    """The batches of a run by queue, in the order the index gives them; checks every checksum."""
    data = path.read_bytes()
    footer = FileFrame.unpack(data[-FRAME_BYTES:], RUN_MAGIC, str(path))
    assert FileFrame.unpack(data[:FRAME_BYTES], RUN_MAGIC, str(path)).row_count == 0
    index, behind = rows_and_aborted(data, footer)
    check_aborted(behind, footer, footer.rows_position + len(index))
    assert google_crc32c.value(index) == footer.rows_crc
    queues: dict[int, list[bytes]] = {}
    position = FRAME_BYTES
    for row in numpy.frombuffer(index, EXTENT_ROW, footer.row_count):
        assert row["position"] == position, "extents leave no gap"
        extent = data[position : position + int(row["length"])]
        assert google_crc32c.value(extent) == row["crc"]
        batches = batches_in(extent)
        assert len(batches) == row["batch_count"]
        queues.setdefault(int(row["queue_id"]), []).extend(batches)
        position += len(extent)
    assert position == footer.rows_position
    assert list(queues) == sorted(queues)
    return queues


def read_runs(paths: Iterable[Path]) -> dict[int, list[bytes]]:
    """The batches of several runs by queue, the runs in the order given."""
    queues: dict[int, list[bytes]] = {}
    for path in paths:
        for queue_id, batches in read_run(path).items():
            queues.setdefault(queue_id, []).extend(batches)
    return queues
