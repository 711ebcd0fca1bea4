"""The index of aborted transactions: there and empty in what is written from feature level 3 on, checked wherever an
index is read, and absent from files of before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage.queue_store.runs import SimulatedTarget, WatchedFiles, make_batch, write, write_merged, write_run
from tests.storage.small_node import SmallNode, simulated

from mainstem.model import FeatureLevel
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.aborted import ABORTED_MAGIC, ABORTED_ROW_BYTES, SECTION_BYTES, no_rows, section_of
from mainstem.storage.extents.extent_format import (
    ABORTED_VERSION,
    FORMAT_VERSION,
    FRAME_BYTES,
    INDEX_MAGIC,
    RUN_MAGIC,
    FileFrame,
    name_crc_of,
)
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.merging.merge_inputs import InputFile, index_pieces, read_aborted
from mainstem.storage.queue_store.reading.open_files import load_index
from mainstem.storage.store_files.run_writer import RunWriter
from mainstem.storage.store_files.store_file import index_path_of, path_of

NAMES = ("a.run", "a.pack", "t/0/u/00000000000000000000.log")
SIZES = "do not (make up|fit) its"
BATCHES = [make_batch(1, offset, size=300) for offset in range(3)]


def written(name: str) -> WatchedFiles:
    files = WatchedFiles()
    if name.endswith(".run"):
        write_run(files, name, BATCHES, version=ABORTED_VERSION)
    else:
        write_merged(files, name, 0, BATCHES)
    return files


async def loaded(files: WatchedFiles, name: str) -> ExtentIndex:
    """As readers load it."""
    beside = index_path_of(name) != path_of(name)
    size = len(files.content(path_of(name)))
    file = await files.open(index_path_of(name))
    return await load_index(file, name, name, size if beside else None)


def merged(files: WatchedFiles, name: str, directory: Path) -> int:
    """As merges read it: the number of rows."""
    paths = [directory / "file", directory / "index" if index_path_of(name) != path_of(name) else directory / "file"]
    paths[0].write_bytes(files.content(path_of(name)))
    paths[1].write_bytes(files.content(index_path_of(name)))
    file = InputFile(name, *map(str, paths))
    assert not len(read_aborted(file))
    return sum(len(rows) for rows in index_pieces(file))


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_of_it_is_checked_in_all_kinds_of_files(name: str, tmp_path: Path) -> None:
    files = written(name)
    whole = files.content(index_path_of(name))
    assert len(asyncio.run(loaded(files, name))) == merged(files, name, tmp_path) == 1
    section = len(whole) - FRAME_BYTES - SECTION_BYTES
    assert FileFrame.unpack(whole[section:-FRAME_BYTES], ABORTED_MAGIC, name).version == ABORTED_VERSION
    for at in range(section, section + SECTION_BYTES):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        files.put(index_path_of(name), bytes(damaged))
        with pytest.raises(FormatError, match="aborted transactions"):
            asyncio.run(loaded(files, name))
        with pytest.raises(FormatError, match="aborted transactions"):
            merged(files, name, tmp_path)


def section_with(name: str, **fields: int) -> Callable[[bytes], bytes]:
    """A section whose frame says otherwise, in the place of the empty one."""

    def changed(whole: bytes) -> bytes:
        at = len(whole) - FRAME_BYTES - SECTION_BYTES
        frame = FileFrame.unpack(whole[at:-FRAME_BYTES], ABORTED_MAGIC, name)._replace(**fields)
        rows = bytes(ABORTED_ROW_BYTES * frame.row_count)
        return whole[:at] + rows + frame.pack() + whole[-FRAME_BYTES:]

    return changed


def footer_with(magic: int, version: int) -> Callable[[bytes], bytes]:
    def changed(whole: bytes) -> bytes:
        return whole[:-FRAME_BYTES] + FileFrame.unpack(whole[-FRAME_BYTES:], magic, "")._replace(version=version).pack()

    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (section_with("a.pack", row_count=1), "fail their CRC"),
        (section_with("a.pack", rows_position=1), "1 on, where"),
        (section_with("a.pack", name_crc=1), "another file's"),
        (section_with("a.pack", version=FORMAT_VERSION), "another file's"),
        (footer_with(RUN_MAGIC, FORMAT_VERSION), SIZES),
        (lambda whole: whole[: -FRAME_BYTES - SECTION_BYTES] + whole[-FRAME_BYTES:], SIZES),
        (
            lambda whole: whole[: -FRAME_BYTES - SECTION_BYTES] + bytes(40) + whole[-FRAME_BYTES:],
            SIZES,
        ),
    ],
    ids=["a row", "elsewhere", "another name", "another version", "old footer", "left out", "half of it"],
)
def test_what_does_not_fit_is_refused(change: Callable[[bytes], bytes], message: str, tmp_path: Path) -> None:
    files = written("a.pack")
    files.put("packed/a.pack", change(files.content("packed/a.pack")))
    with pytest.raises(FormatError, match=message):
        asyncio.run(loaded(files, "a.pack"))
    with pytest.raises(FormatError, match=message):
        merged(files, "a.pack", tmp_path)


def test_a_header_of_another_version_is_refused() -> None:
    files = written("a.pack")
    whole = files.content("packed/a.pack")
    files.put("packed/a.pack", FileFrame(RUN_MAGIC).pack() + whole[FRAME_BYTES:])
    with pytest.raises(FormatError, match="its header is of format 1, its footer of format 2"):
        asyncio.run(loaded(files, "a.pack"))


@pytest.mark.parametrize("name", NAMES)
def test_files_of_before_are_read_as_they_are(name: str, tmp_path: Path) -> None:
    files = written(name)
    path = index_path_of(name)
    whole = files.content(path)
    magic = INDEX_MAGIC if path != path_of(name) else RUN_MAGIC
    footer = FileFrame.unpack(whole[-FRAME_BYTES:], magic, name)._replace(version=FORMAT_VERSION)
    body = whole[FRAME_BYTES : -FRAME_BYTES - SECTION_BYTES]
    files.put(path, FileFrame(magic).pack() + body + footer.pack())
    assert len(asyncio.run(loaded(files, name))) == merged(files, name, tmp_path) == 1
    if magic == RUN_MAGIC:
        write(RunWriter(name, SimulatedTarget(before := WatchedFiles(), name)), BATCHES)
        assert before.content(path) == files.content(path), "as runs are written below feature level 3"


def test_the_section_is_as_the_formats_say() -> None:
    at, crc = 1234, name_crc_of("a.run")
    section = section_of(no_rows(), at, crc)
    assert section[:8] == b"MSABT1\0\0"
    assert section[8:12] == (2).to_bytes(4, "little")
    assert section[16:24] == at.to_bytes(8, "little")
    assert section[24:32] == bytes(8)
    assert section[56:60] == crc.to_bytes(4, "little")


@pytest.mark.parametrize("level", [FeatureLevel.FIRST, FeatureLevel.HARDENED, FeatureLevel.MERGED])
def test_runs_have_it_where_all_nodes_read_it(tmp_path: Path, level: FeatureLevel) -> None:
    def prepare(node: SmallNode) -> None:
        node.level = level

    async def story(node: SmallNode) -> None:
        await node.fill(5)
        await node.split()
        (path,) = (path for path in node.disk2.paths() if path.endswith(".run"))
        content = node.disk2.content(path)
        version = ABORTED_VERSION if level >= FeatureLevel.MERGED else FORMAT_VERSION
        assert FileFrame.unpack(content[:FRAME_BYTES], RUN_MAGIC, path).version == version
        assert FileFrame.unpack(content[-FRAME_BYTES:], RUN_MAGIC, path).version == version
        await node.rounds()
        assert await node.read_offsets() == list(range(5))

    simulated(tmp_path, story, prepare)
