"""The name of a file of the queue store, its place, and the part that other processes are told."""

from __future__ import annotations

import msgspec
import pytest

from mainstem.rpc.messages.split import FileDescription
from mainstem.storage.errors import StorageError
from mainstem.storage.store_files.store_file import (
    TEMPORARY_INFIX,
    FileKind,
    StoreFile,
    has_index_beside,
    index_path_of,
    kind_of,
    owner_of,
    path_of,
    paths_of,
    segment_key,
    segment_name,
)

RUN = StoreFile(
    name="a.run", retention_class="forever", bytes=9, batch_bytes=8, batch_count=7, record_count=6, queue_count=5,
    min_timestamp=-1, max_timestamp=4,
)  # fmt: skip


def test_a_name_says_what_a_file_is_and_where_it_lies() -> None:
    segment = segment_name("orders.v1_x-y", 12, "5a5a", 340)
    assert {name: (kind_of(name), path_of(name)) for name in ("a.run", "a.pack", segment)} == {
        "a.run": (FileKind.RUN, "runs/a.run"),
        "a.pack": (FileKind.PACKED, "packed/a.pack"),
        segment: (FileKind.SEGMENT, "queues/orders.v1_x-y/12/5a5a/00000000000000000340.log"),
    }
    joined = segment_name("orders.v1_x-y", 12, "5a5a", 340, joined=True)
    assert (kind_of(joined), path_of(joined)) == (
        FileKind.SEGMENT,
        "queues/orders.v1_x-y/12/5a5a/00000000000000000340.seg",
    )
    assert segment_key(segment) == segment_key(joined) == ("orders.v1_x-y", 12, 340)
    assert [*map(has_index_beside, ("a.run", "a.pack", joined, segment))] == [False, False, False, True]
    assert paths_of(joined) == [path_of(joined)] == [index_path_of(joined)]
    assert owner_of(path_of(joined)) == owner_of(f"{path_of(joined)}{TEMPORARY_INFIX}7") == joined
    assert index_path_of("a.pack") == "packed/a.pack"
    assert index_path_of(segment) == "queues/orders.v1_x-y/12/5a5a/00000000000000000340.extents"
    assert paths_of("a.run") == ["runs/a.run"]
    assert [path.rpartition(".")[2] for path in paths_of(segment)] == ["log", "extents", "index", "timeindex"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a",
        "a/b.run",
        "../a.pack",
        "a\0.run",
        "0.log",
        "a/0/0.log",
        "a/0/x/y.log",
        "a/../x/0.log",
        "../0/x/0.log",
        "0.seg",
        "a/0/x/y.seg",
        "a/0/x/0.extents",
        "a/0/x/0.",
        "a/0/x/0",
    ],
)
def test_what_cannot_be_a_name_leads_nowhere(name: str) -> None:
    with pytest.raises(StorageError, match="cannot be the name"):
        path_of(name)


def test_a_run_is_told_as_older_versions_told_it() -> None:
    """They know nothing of levels, and describe a run of their own in the same words."""
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(RUN.message()))
    assert sorted(told) == sorted(FileDescription.__struct_fields__[:9])
    assert StoreFile.of(msgspec.convert(told, FileDescription)) == RUN
    merged = msgspec.structs.replace(
        RUN, name="a.pack", level=1, group=2, first_queue=3 << 32, last_queue=4 << 32, first_offset=5
    )
    assert merged.is_merged
    assert not RUN.is_merged
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(merged.message()), type=FileDescription)
    assert StoreFile.of(again) == merged
