"""Runs of any size that take next to no disk: header, index and footer are written, the batches are a hole.

A node that records one looks at what it begins and ends with, as at any run; nobody reads its batches. So a bench has a
store of 100 GB, with all that nodes keep of it, on a disk of a few.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy

from mainstem.kernel import crc32c
from mainstem.rpc.messages.split import FileDescription
from mainstem.storage.extents.extent_format import (
    EXTENT_BYTES,
    EXTENT_ROW,
    FRAME_BYTES,
    RUN_MAGIC,
    FileFrame,
    name_crc_of,
)
from mainstem.storage.store_files.store_file import RUN_SUFFIX

RECORDS_PER_EXTENT = 64
"""Of 1 KiB…"""
BATCHES_PER_EXTENT = 4
"""…in batches of 16 KiB."""


def hollow_run_name(number: int) -> str:
    """The name of a run as the splitter gives them: no other run ever has it."""
    return f"{number:012d}-{0:010d}-{uuid.uuid4().hex}{RUN_SUFFIX}"


def write_hollow_run(
    path: Path,
    name: str,
    group: int,
    queue_ids: Sequence[int],
    first_offset: int,
    batch_bytes: int,
    now_ms: int,
    retention_class: str,
) -> FileDescription:
    """Write a run of these queues of a write group, in ascending order, each from `first_offset` on with an equal
    number of whole extents, `batch_bytes` in all at the most. Returns its description for a shared store."""
    extents_per_queue = batch_bytes // EXTENT_BYTES // len(queue_ids)
    assert extents_per_queue > 0, "every queue has an extent"
    count = extents_per_queue * len(queue_ids)
    rows = numpy.zeros(count, EXTENT_ROW)
    rows["queue_id"] = numpy.repeat(numpy.array(queue_ids, numpy.uint64), extents_per_queue)
    rows["base_offset"] = first_offset + RECORDS_PER_EXTENT * numpy.tile(
        numpy.arange(extents_per_queue), len(queue_ids)
    )
    rows["last_offset"] = rows["base_offset"] + RECORDS_PER_EXTENT - 1
    rows["max_timestamp"] = now_ms
    rows["position"] = FRAME_BYTES + EXTENT_BYTES * numpy.arange(count)
    rows["length"] = EXTENT_BYTES
    rows["batch_count"] = BATCHES_PER_EXTENT
    rows["record_count"] = RECORDS_PER_EXTENT
    index, held = rows.tobytes(), count * EXTENT_BYTES
    footer = FileFrame(
        RUN_MAGIC, crc32c(index), FRAME_BYTES + held, count, held, now_ms, now_ms, name_crc_of(name)
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(FileFrame(RUN_MAGIC).pack())
        file.seek(FRAME_BYTES + held)
        file.write(index + footer.pack())
    return FileDescription(
        name=name,
        retention_class=retention_class,
        bytes=path.stat().st_size,
        batch_bytes=held,
        batch_count=count * BATCHES_PER_EXTENT,
        record_count=count * RECORDS_PER_EXTENT,
        queue_count=len(queue_ids),
        min_timestamp=now_ms,
        max_timestamp=now_ms,
        group=group,
    )
