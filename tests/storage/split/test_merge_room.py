"""The merges of a shared store: one command names all files of each."""

from __future__ import annotations

import pytest

from mainstem.rpc.messages.split import FileDescription
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.remote.decided.remote_changes import (
    AT_ONCE_BYTES_MAX,
    COMMAND_BYTES_MAX,
    WantedChange,
    bytes_of_file,
    bytes_of_name,
    commands,
)
from mainstem.storage.remote.decided.remote_state import NOWHERE
from mainstem.storage.split.merge_room import FILE_BYTES_MAX, NAME_BYTES_MAX, SHORT_NAME_BYTES, MergeRoom
from mainstem.storage.write_groups.control import RemoteSpan

LARGEST = (1 << 63) - 1
UNIQUE = "f" * 32
RUN = f"{(1 << 40) - 1:012d}-{(1 << 33) - 1:010d}-{UNIQUE}.run"
PACK = f"4095-{(1 << 64) - 1:016x}-{UNIQUE}.pack"
SEGMENT = f"{'t' * 249}/{(1 << 31) - 1}/{UNIQUE}/{LARGEST:020d}.log"


def described(name: str) -> FileDescription:
    """With the largest numbers that there can be."""
    return FileDescription(
        name=name, retention_class=f"ms-{1 << 62}+remote", bytes=LARGEST, batch_bytes=LARGEST, batch_count=LARGEST,
        record_count=LARGEST, queue_count=LARGEST, min_timestamp=LARGEST, max_timestamp=LARGEST, level=2, group=4095,
        first_queue=LARGEST, last_queue=LARGEST, first_offset=LARGEST, clean_ms=LARGEST, horizon_ms=LARGEST,
    )  # fmt: skip


def test_names_are_counted_as_long_as_they_can_be() -> None:
    assert max(map(bytes_of_name, (RUN, PACK))) <= SHORT_NAME_BYTES
    assert bytes_of_name(SEGMENT) <= NAME_BYTES_MAX
    assert bytes_of_file(described(SEGMENT)) <= FILE_BYTES_MAX


@pytest.mark.parametrize("bytes_max", [COMMAND_BYTES_MAX, 100_000, AT_ONCE_BYTES_MAX])
@pytest.mark.parametrize("input_name", [RUN, SEGMENT])
def test_the_largest_merge_is_one_command(bytes_max: int, input_name: str) -> None:
    room = MergeRoom(bytes_max)
    lines = room.lines(MergeLines())
    lines.validate()
    count = lines.final_files_max if input_name is SEGMENT else lines.input_files_max
    inputs = [input_name] * count
    files = (described(SEGMENT),) * room.outputs_beside(inputs)
    assert len(files) >= lines.output_files_max, "at the least"
    wanted = WantedChange(0, [RemoteSpan(0, 1, files)], inputs)
    assert len(commands(wanted, NOWHERE, 1, bytes_max)) == 1


def test_merges_of_a_usual_node_have_the_bytes_that_they_have_elsewhere() -> None:
    lines = MergeRoom(AT_ONCE_BYTES_MAX).lines(MergeLines())
    assert lines[:5] == MergeLines()[:5]
    assert lines.input_files_max > 6_000
    assert MergeRoom(AT_ONCE_BYTES_MAX).outputs_beside([RUN] * 2_048) > 1_200
