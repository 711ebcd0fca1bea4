"""How much is enough for a merge: lines, in bytes, that files, levels and tasks reach; how many files it may have."""

from __future__ import annotations

from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.errors import ConfigError

Integers = numpy.typing.NDArray[numpy.int64]
Flags = numpy.typing.NDArray[numpy.bool_]

TINY_SHARE = 8
"""A span is tiny whose files have this part of their line on average, or less: packed files 16 MiB. So is a file."""

SEGMENT_PARTS_MAX = 128
"""Segments reach this part of the line of packed files, whatever their topic says: 1 MiB, the least that Kafka
takes."""

SEGMENT_BYTES_MAX = 1 << 30
"""A longer line for segments counts as this: a segment is shorter than twice its line, and Kafka's positions in it are
of 31 bits."""

NEVER = numpy.int64(2**62)
"""The line of a queue that gets no segments."""


class MergeLines(NamedTuple):
    """How much is enough, in bytes of batches of one write group, and how many files are too many."""

    packed_bytes: int = 128 << 20
    """Each packed file reaches this."""
    level_one_bytes: int = 8 << 30
    """So many bytes in runs are merged if no segments are in sight. With a quarter of a million queues it makes extents
    of 32 KiB out of single batches."""
    wait_bytes_max: int = 32 << 30
    """Runs wait for segments to fill up to this: two thousand runs, if all four write groups do."""
    level_two_bytes: int = 64 << 30
    task_bytes: int = 1 << 30
    """The bytes that one task merges, unless one segment is larger: a split waits for it at the most."""
    input_files_max: int = 1 << 14
    """Files that one merge takes, unless one span has more: some megabytes in the node's answer."""
    final_files_max: int = 1 << 14
    """The same where queue segments may be among them, whose names are long."""
    output_files_max: int = 0
    """Files that one merge makes; 0: as many as there are. Its files are larger where there would be more."""

    def validate(self) -> None:
        """Raises ConfigError for lines that cannot be used."""
        if not 0 < self.packed_bytes <= self.level_one_bytes <= self.wait_bytes_max:
            raise ConfigError(f"merge lines {self}: 0 < packed_bytes <= level_one_bytes <= wait_bytes_max")
        if self.level_two_bytes < self.level_one_bytes or self.task_bytes <= 0:
            raise ConfigError(f"merge lines {self}: level_two_bytes is at least level_one_bytes, task_bytes positive")

    def segment_line(self, segment_bytes: int) -> int:
        """The bytes at which a queue of a topic with this `segment.bytes` gets a segment."""
        return min(max(segment_bytes, self.packed_bytes // SEGMENT_PARTS_MAX, 1), SEGMENT_BYTES_MAX)
