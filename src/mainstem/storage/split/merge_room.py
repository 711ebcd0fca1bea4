"""How large a merge of a shared store may be: one command of a write group's log names all of its files.

A command that names more than fits into a block is refused, and so would be the same merge each time it is tried. So
the inputs of a merge take half of a command at the most, and what they leave is for its outputs: where these would be
more, they are larger instead. Names are taken as long as they can be, so that no merge is refused for its names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.remote.decided.remote_changes import bytes_of_name

SHORT_NAME_BYTES = 80
"""Of the name of a run or a packed file, about; the longest ones have 65 letters."""

NAME_BYTES_MAX = 340
"""Of the name of a queue segment, in which its topic's has up to 249 letters."""

FILE_BYTES_MAX = 680
"""Of what describes a file with such a name."""


class MergeRoom(NamedTuple):
    """The room that one command has."""

    command_bytes_max: int

    def lines(self, lines: MergeLines) -> MergeLines:
        """The same lines, for merges that one command names: they wait for fewer files, and for no more bytes than make
        as many packed files as there may be."""
        half = self.command_bytes_max // 2
        outputs = max(1, half // FILE_BYTES_MAX)
        size = lines.packed_bytes * outputs
        return lines._replace(
            level_one_bytes=min(lines.level_one_bytes, size),
            wait_bytes_max=min(lines.wait_bytes_max, size),
            level_two_bytes=min(lines.level_two_bytes, size),
            input_files_max=min(lines.input_files_max, max(1, half // SHORT_NAME_BYTES)),
            final_files_max=min(lines.final_files_max, max(1, half // NAME_BYTES_MAX)),
            output_files_max=outputs,
        )

    def outputs_beside(self, inputs: Iterable[str]) -> int:
        """How many files may come in the place of these."""
        return max(1, (self.command_bytes_max - sum(map(bytes_of_name, inputs))) // FILE_BYTES_MAX)
