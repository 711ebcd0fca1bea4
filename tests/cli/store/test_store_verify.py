"""`mainstem store verify` over directories: what it prints, what it ends with, which directories it takes."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import numpy
import pytest
from tests.cli.documented import documented_keys, keys_of
from tests.cli.test_narrow_terminals import fitting
from tests.storage.queue_store.merges import PlainTarget
from tests.storage.queue_store.runs import Batch, make_batch, write

from mainstem.cli.main import run
from mainstem.cli.terminal import progress_line
from mainstem.kernel import walk_batches
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.store_files.run_writer import RunWriter
from mainstem.storage.store_files.segment_writer import BATCH_FIELDS, SegmentWriter, described
from mainstem.storage.store_files.store_file import StoreFile, path_of, segment_name


class SystemClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 0.0


class Disks:
    """The two directories of a node that was stopped, with some runs."""

    def __init__(self, root: Path, runs: int) -> None:
        self.write_dir, self.store_dir = root / "write", root / "store"
        self.store_dir.mkdir(parents=True)
        self.options = ["--write-dir", str(self.write_dir), "--store-dir", str(self.store_dir)]
        self.names: list[str] = []
        self.merges = 0
        asyncio.run(self._write(runs))

    async def _write(self, runs: int) -> None:
        files = DiskFiles(self.store_dir)
        store = await QueueStore.open(files, str(self.write_dir / "manifest.sqlite"), QueueStoreConfig(), SystemClock())
        for number in range(runs):
            name = f"{number}.run"
            batches = [make_batch(queue, number, size=900) for queue in range(40)]
            summary = write(RunWriter(name, PlainTarget(self.store_dir / path_of(name))), batches)
            file = StoreFile(retention_class="forever", **summary._asdict())
            await store.splits.record(0, number, number + 1, [file], applied_index=number)
            self.names.append(name)
        await store.close()
        await files.close()

    def segment(self, batches: list[Batch], place: int = 0) -> StoreFile:
        """Put a queue segment in the place of the first file, or another."""
        return asyncio.run(self._merge(batches, place))

    async def _merge(self, batches: list[Batch], place: int) -> StoreFile:
        first = batches[0]
        self.merges += 1
        name = segment_name("orders", first.queue_id, f"m{self.merges}", first.base_offset)
        stem = self.store_dir / path_of(name).removesuffix(".log")
        with SegmentWriter(name, first.base_offset, lambda suffix: PlainTarget(stem.with_suffix(suffix))) as writer:
            content = b"".join(batch.data for batch in batches)
            rows = numpy.empty((len(batches), len(BATCH_FIELDS)), numpy.int64)
            assert walk_batches(content, rows.data.cast("B")) == len(batches)
            writer.append(content, described(rows, first.queue_id), rows)
            file = StoreFile(
                retention_class="forever", level=2, group=0, first_queue=first.queue_id, last_queue=first.queue_id,
                first_offset=first.base_offset, **writer.finish()._asdict(),
            )  # fmt: skip
        files = DiskFiles(self.store_dir)
        store = await QueueStore.open(files, str(self.write_dir / "manifest.sqlite"), QueueStoreConfig(), SystemClock())
        await store.changes.merge(0, [store.manifest.ranges(0)[place]], [file])
        await store.close()
        await files.close()
        return file

    def flip(self, path: str, at: int) -> None:
        place = self.store_dir / path
        content = bytearray(place.read_bytes())
        content[at] ^= 1
        place.write_bytes(content)


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    return Disks(tmp_path, 3)


def test_a_sound_store_is_told_in_two_lines(disks: Disks, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "verify", *disks.options]) == 0
    read, found = capsys.readouterr().out.splitlines()
    assert read.startswith("read   3 files, 1")
    assert found == "found  all is as it should be"


def test_a_fault_is_told_with_its_place_and_what_to_do(
    disks: Disks, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disks.flip("runs/1.run", 64 + 900 + 100)
    (disks.store_dir / "runs" / "left.run").write_bytes(b"12345")
    assert run(["store", "verify", *disks.options, "--jobs", "2", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    documented = documented_keys()["store verify"]
    assert keys_of(told, documented) == documented
    (finding,) = told["findings"]
    assert (finding["path"], finding["position"]) == ("runs/1.run", 64 + 900)
    assert "a batch fails its CRC" in finding["what"]
    assert "offsets 1 to 1 of partition 1 of topic number 0" in finding["what"]
    assert "restore runs/1.run from a copy" in finding["advice"]
    assert told["unnamed"] == [{"path": "runs/left.run", "bytes": 5, "kind": "orphan"}]
    assert (told["ok"], told["files"], told["gone"]) == (False, 3, 0)
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["store", "verify", *disks.options]) == 1
    text = fitting(capsys.readouterr().out)
    assert "runs/1.run" in text
    assert "found  1 fault" in text
    assert "runs/left.run (orphan, 5 B)" in text


def test_it_tells_how_far_it_is(
    disks: Disks, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_line, "PIPE_SECONDS", 0.0)
    assert run(["store", "verify", *disks.options, "--progress"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"[\d.]+ \w+/s, 1\d\d\.\d KiB of 1\d\d\.\d KiB, 3 of 3 files", lines[-1])
    assert run(["store", "verify", *disks.options, "--no-progress"]) == 0
    assert run(["store", "verify", *disks.options]) == 0
    assert capsys.readouterr().err == ""


def test_directories_come_from_the_configuration_too(
    disks: Disks, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "node.toml"
    config.write_text(f'write_dir = "{disks.write_dir}"\nstore_dir = "file://{disks.store_dir}"\n')
    assert run(["store", "verify", "--config", str(config)]) == 0
    monkeypatch.setenv("MAINSTEM_WRITE_DIR", str(disks.write_dir))
    monkeypatch.setenv("MAINSTEM_STORE_DIR", str(disks.store_dir))
    assert run(["store", "verify"]) == 0
    assert capsys.readouterr().out.count("3 files") == 2


def test_what_is_not_there_is_told(disks: Disks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert run(["store", "verify", "--write-dir", str(disks.write_dir), "--store-dir", nowhere]) == 1
    assert "name the queue store's with --store-dir" in capsys.readouterr().err
    assert run(["store", "verify", "--write-dir", nowhere, "--store-dir", str(disks.store_dir)]) == 1
    assert "has no manifest.sqlite: name the node's disk 1 with --write-dir" in capsys.readouterr().err
    assert not Path(nowhere).exists()
    only = ["store", "verify", "--without-manifest", "--write-dir", nowhere, "--store-dir", str(disks.store_dir)]
    assert run(only) == 0
    disks.flip("runs/2.run", 3)
    assert run(only) == 1
    assert run(["store", "verify", "--store-dir", "s3://bucket/store"]) in (1, 2)


def test_the_disks_are_left_as_they_are(disks: Disks) -> None:
    def state() -> dict[Path, tuple[int, bytes]]:
        places = [*disks.write_dir.rglob("*"), *disks.store_dir.rglob("*")]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in places if path.is_file()}

    before = state()
    assert run(["store", "verify", *disks.options]) == 0
    assert state() == before
