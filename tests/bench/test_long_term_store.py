"""The figures of the long-term store are of its files; a splitter without Spark leaves what a splitter leaves."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.errors import BenchError
from bench.nodes.scaled_node import bytes_of, scaled
from bench.store.plain_splitter import PlainSplitter, file_bytes
from bench.store.reads.store_reads import FILES, measured
from bench.store.spark_pass import Pass, moved_bytes
from bench.store.split_watch import SplitCpu
from bench.systems.mainstem import MERGE_SCALE, Mainstem
from bench.systems.system import Durability, Node, Setup
from bench.topics import Queues, create
from bench.workloads.long_term_store import LARGE, SMALL, file_figures, pass_figures
from confluent_kafka import Producer

from mainstem.storage.merging.merge_lines import MergeLines

MEBIBYTE = 1 << 20
SCALE = 2048
"""Packed files of 64 KiB, merges from 4 MiB on."""


def test_a_scale_divides_every_line() -> None:
    lines = scaled("64")
    assert {name: 64 * line for name, line in bytes_of(lines).items()} == bytes_of(MergeLines())
    assert lines.input_files_max == MergeLines().input_files_max
    lines.validate()
    whole = scaled("64/whole")
    assert whole == lines._replace(packed_bytes=MergeLines().packed_bytes)
    whole.validate()
    short = scaled("64/512")
    assert short.packed_bytes == lines.packed_bytes
    assert 8 * short.level_one_bytes == lines.level_one_bytes
    assert 8 * short.wait_bytes_max == lines.wait_bytes_max
    assert short.task_bytes == lines.task_bytes
    short.validate()


def test_files_are_told_per_tebibyte_of_what_is_merged_and_runs_apart() -> None:
    levels: list[dict[str, int | str]] = [
        {"level": 0, "kind": "run", "files": 7, "bytes": 800, "batch_bytes": 700},
        {"level": 2, "kind": "packed file", "files": 3, "bytes": 0, "batch_bytes": 1 << 28},
        {"level": 2, "kind": "queue segment", "files": 5, "bytes": 0, "batch_bytes": 3 << 28},
    ]
    # a GiB has eight files, so a store of full size has as many in 64 GiB: 16 times in a TiB
    assert file_figures(levels, 64) == {"files_per_tib": 128.0, "runs_waiting": 7}
    with pytest.raises(BenchError, match="nothing was merged"):
        file_figures(levels[:1], 64)


def test_what_a_pass_moved_is_read_in_its_log() -> None:
    merged = "2026-01-01 00:00:00,000 INFO mainstem.pipeline.merge.merger: write group 2: 12 files with 3456 bytes, "
    assert moved_bytes(merged + "78 of them dead, are merged into 2 files on level 2\n") == 3456
    compacted = "x INFO mainstem.pipeline.merge.compactor: write group 0: 4 files with 999 bytes are compacted to 111"
    assert moved_bytes(compacted) == 999
    assert moved_bytes("split lease of epoch 3 taken from 127.0.0.1:9999") is None


def test_a_pass_is_charged_with_all_of_its_processes() -> None:
    figures = pass_figures(Pass(400_000_000, 4.0, SplitCpu(0.25, 0.25, 0.5, 1.0), 9.0))
    assert figures["mb_per_s"] == 100
    assert figures["mb_per_cpu_s"] == 200
    assert figures["worker_cpu_ms_per_mb"] == 2.5
    assert figures["spark_start_cpu_s"] == 9


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    setup = Setup(directory=tmp_path, cpus=(0,), cores_count=1, durability=Durability.ASYNC,
                  settings={MERGE_SCALE: str(SCALE)})  # fmt: skip
    started = Mainstem().start(setup)
    try:
        yield started
    finally:
        started.stop()


def test_a_splitter_without_spark_splits_and_merges_and_counts_what_it_writes(node: Node, tmp_path: Path) -> None:
    queues = Queues("life", 1, 2)
    create(node.address, queues, {"segment.bytes": str(MEBIBYTE)})
    assert node.http is not None
    value = bytes(1000)
    store = tmp_path / "store"
    with PlainSplitter(node.http, MEBIBYTE) as splitter:
        producer = Producer({"bootstrap.servers": node.address, "batch.size": 20_000})
        for partition in range(2):
            for _ in range(3_000):
                producer.produce("life-0", value, partition=partition)
            producer.flush()
        splitter.split(merging=True)
        splitter.drain()
        taken, written = splitter.taken_bytes, splitter.written_bytes
    kinds = Counter(path.suffix for path in store.rglob("*") if path.suffix in (".run", ".pack", ".log"))
    assert kinds == {".log": 4}, "two segments of a queue, and nothing else"
    assert taken > 6_000_000
    segments = [str(path.relative_to(store / "queues")) for path in store.rglob("*.log")]
    merged = sum(file_bytes(store, name) for name in segments)
    assert merged > taken, "indexes count"
    assert written > taken + merged, "runs count, and so does the copy of the manifest"
    assert written < 1.1 * (taken + merged)
    with urllib.request.urlopen(f"http://{node.http}/v1/store", timeout=60) as answer:
        levels = json.load(answer)["levels"]
    assert file_figures(levels, 1)["files_per_tib"] == pytest.approx(4 * (1 << 40) / taken)


def test_lives_are_long_enough_for_merges() -> None:
    lines = scaled("64")
    for life in (LARGE, SMALL):
        assert min(life.bytes.values()) >= 2 * 4 * lines.level_one_bytes, "of each of four write groups"


def test_queues_of_a_store_that_has_holes_are_read_whole(tmp_path: Path) -> None:
    figures = asyncio.run(measured(tmp_path, 1_024))
    assert figures.spans == 2
    assert figures.files == 2 * FILES
    assert 500_000 < figures.queue_bytes <= 600_000
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*.pack")) < 128 * MEBIBYTE, "holes take no room"
