"""The store that the reads of the remote tier are measured with: what it sends, and how fast."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from bench.errors import BenchError
from bench.store.reads import remote_reads
from bench.store.reads.remote_reads import (
    LINK_BURST_SECONDS,
    LINK_PIECE_BYTES,
    Link,
    StoreConnection,
    run,
    set_apart,
)
from tests.fakes.clock import FakeClock

RATE = 1e6


def test_all_who_send_share_one_link() -> None:
    clock = FakeClock()
    link = Link(RATE, clock.monotonic)
    waits = [link.wait_for(100_000) for _ in range(20)]
    assert waits[0] == pytest.approx(0.1 - LINK_BURST_SECONDS)
    assert waits[-1] == pytest.approx(2.0 - LINK_BURST_SECONDS), "twenty times as much takes twenty times as long"


def test_a_link_that_nobody_used_sends_no_faster_afterwards() -> None:
    clock = FakeClock()
    link = Link(RATE, clock.monotonic)
    link.wait_for(100_000)
    clock.advance(60)
    assert link.wait_for(100_000) == pytest.approx(0.1 - LINK_BURST_SECONDS)


@pytest.mark.parametrize("bytes_per_second", [0, 1e9])
def test_what_the_store_sends_over_a_link_is_the_object(tmp_path: Path, bytes_per_second: float) -> None:
    content = random.Random(1).randbytes(5 * LINK_PIECE_BYTES + 17)
    (tmp_path / "object").write_bytes(content)
    ranges = [(0, len(content)), (LINK_PIECE_BYTES + 1, 3 * LINK_PIECE_BYTES), (5, 6)]

    async def read() -> None:
        link = Link(bytes_per_second)
        files: dict[str, memoryview] = {}
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: StoreConnection(tmp_path, 0.0, link, files), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            for start, stop in ranges:  # all asked for before the first has come
                writer.write(f"GET /object HTTP/1.1\r\nRange: bytes={start}-{stop - 1}\r\n\r\n".encode())
            for start, stop in ranges:
                head = await reader.readuntil(b"\r\n\r\n")
                assert f"Content-Length: {stop - start}\r\n".encode() in head
                assert await reader.readexactly(stop - start) == content[start:stop]
            writer.close()

    asyncio.run(read())


def test_both_ways_read_all_of_it_over_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_reads, "OTHER_BYTES", 1 << 20)
    figures = run(tmp_path, 3, 1.0, 4, 2, 1, link_megabytes_per_second=1000)
    assert figures.link_megabytes_per_second == 1000
    assert figures.tier_read_mb >= figures.megabytes > 4
    assert figures.least_ratio == figures.most_ratio == pytest.approx(figures.ratio), "of one round"


def test_store_and_reader_share_no_processor_until_the_reader_is_done() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one processor")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as store:
        with set_apart(store.pid):
            assert os.sched_getaffinity(0) | os.sched_getaffinity(store.pid) == allowed
            assert not os.sched_getaffinity(0) & os.sched_getaffinity(store.pid)
        assert os.sched_getaffinity(0) == allowed
        store.kill()


def test_nothing_is_set_apart_on_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0})
    with pytest.raises(BenchError, match="--apart needs two processors"), set_apart(0):
        pass
