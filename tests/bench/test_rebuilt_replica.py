"""A hollow run is a run for who records it; what a rebuilt replica was sent is told apart; bytes of RPC are counted."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench.errors import BenchError
from bench.nodes.counted_node import received
from bench.nodes.members import metric_in, wait_until
from bench.store.hollow_runs import hollow_run_name, write_hollow_run
from bench.store.rebuilt_replica import LOST, NEW, Rebuilt, index_of, is_whole, queues_of
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.rpc.messages.split import FileDescription
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.extents.extent_format import EXTENT_BYTES
from mainstem.storage.queue_store.reading.open_files import KnownFile, OpenFiles
from mainstem.storage.queue_store.reading.stored_files import check_content
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.store_file import MANY_GROUPS, StoreFile, kind_of, path_of

NOW_MS = 1_700_000_000_000
SIZE = 1 << 30


def hollow(root: Path, name: str, group: int = 2, first_offset: int = 700) -> FileDescription:
    return write_hollow_run(root / path_of(name), name, group, [5, 9, 12], first_offset, SIZE, NOW_MS, "7d")


def test_a_hollow_run_is_taken_for_a_run_and_takes_next_to_no_disk(tmp_path: Path) -> None:
    name = hollow_run_name(3)
    kind_of(name)
    file = hollow(tmp_path, name)

    async def index() -> Any:
        files = DiskFiles(tmp_path)
        opened = OpenFiles(files, index_bytes_max=0, open_files_max=1)
        try:
            return await opened.index(KnownFile(name))
        finally:
            await opened.close()
            await files.close()

    check_content(asyncio.run(index()), StoreFile.of(msgspec.structs.replace(file, group=MANY_GROUPS)))
    found = (tmp_path / path_of(name)).stat()
    assert found.st_size == file.bytes > SIZE - 3 * EXTENT_BYTES
    assert found.st_blocks * 512 < SIZE // 500
    assert (file.group, file.queue_count, file.min_timestamp) == (2, 3, NOW_MS)


def test_hollow_runs_go_on_with_the_queues_of_those_that_lie_in_the_store(tmp_path: Path) -> None:
    with pytest.raises(BenchError):
        queues_of(tmp_path, 2)
    for number in range(2):
        name = hollow_run_name(number)
        write_hollow_run(
            tmp_path / object_of(2, path_of(name)), name, 2, [5, 9], 64 * number, 2 * EXTENT_BYTES, NOW_MS, "7d"
        )
        assert len(index_of(tmp_path / object_of(2, path_of(name)))) == 2
    assert queues_of(tmp_path, 2) == ([5, 9], 128)


def test_what_is_neither_log_nor_content_of_files_is_rows() -> None:
    rebuilt = Rebuilt(
        stored=20 * 10**9, files=80, tail=1000, received=10_000, log=1500, copied_files=4500, from_store=7,
        snapshots=2, seconds=1.5,
    )  # fmt: skip
    assert rebuilt.rows == 4000
    told = "\n".join(rebuilt.lines("it"))
    for figure in ("it: 20.0 GB", "1.500 times the unsplit tail of 1,000", "200 per GB, 50 per file", "in 1.5 s"):
        assert figure in told


def test_a_write_group_is_whole_when_the_new_node_votes_the_lost_one_is_gone_and_nobody_lacks_anything() -> None:
    def replica(node: int, **changed: int) -> dict[str, int]:
        return {"node": node, "voter": True, "active": True, "lag_blocks": 0} | changed

    others = [replica(1), replica(2)]
    assert is_whole([*others, replica(NEW)])
    assert not is_whole(others)
    assert not is_whole([*others, replica(NEW), replica(LOST)])
    assert not is_whole([*others, replica(NEW, voter=False)])
    assert not is_whole([*others, replica(NEW, active=False)])
    assert not is_whole([*others, replica(NEW, lag_blocks=1)])
    assert not is_whole([*others, replica(NEW, lag_blocks=-1)])


def test_samples_of_a_metric_are_added_up_and_those_of_longer_names_left_out() -> None:
    text = '# HELP a_total all\na_total 1\na_total{to="x y"} 2.5\na_total_more 7\n'
    assert metric_in(text, "a_total") == 3.5
    assert metric_in(text, "b_total") == 0


def test_what_does_not_come_true_is_told() -> None:
    with pytest.raises(BenchError, match="nobody came"):
        wait_until(lambda: False, "nobody came", 0.0)


HALVES = """
import asyncio, sys
from pathlib import Path
from bench.nodes.counted_node import count_into

count_into(Path(sys.argv[1]))

from mainstem.rpc.client import Client
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.rpc_server import RpcServer
from mainstem.rpc.wire.method import Method, Nothing, Reply

HALF = Method(1, "test.half", Nothing, Nothing)

async def half(call):
    return Reply(Nothing(), [call.attachment[: len(call.attachment) // 2]])

async def main():
    handlers = Handlers()
    handlers.unary(HALF, half)
    server = RpcServer(handlers)
    host, port = await server.start("127.0.0.1", 0)
    async with Client(host, port) as client:
        for size in map(int, sys.argv[2:]):
            await client.call(HALF, Nothing(), [bytes(size)], timeout_seconds=60)
    await server.close()

asyncio.run(main())
"""
"""Both ends of RPC in a process: half of each attachment comes back."""


def test_bytes_are_counted_by_who_made_the_connection(tmp_path: Path) -> None:
    count = tmp_path / "count"
    sizes = (3_000_000, 1_000_000)
    subprocess.run([sys.executable, "-c", HALVES, str(count), *map(str, sizes)], check=True, timeout=PATIENCE_SECONDS)
    found = received(count)
    assert 0 < found.told - sum(sizes) < 2_000, "besides: the hello, and heads of frames"
    assert 0 < found.asked - sum(sizes) // 2 < 2_000
    assert found.all == found.told + found.asked
