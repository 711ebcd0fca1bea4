"""`mainstem store repair`: what is made anew is as it was, what cannot be is left, and nothing is deleted."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.cli.documented import documented_keys, keys_of
from tests.cli.store.test_store_verify import Disks
from tests.storage.queue_store.runs import Batch, make_batch

from mainstem.cli.main import run
from mainstem.node.node import lock
from mainstem.storage.queue_store.manifest.store_mark import MARK_NAME, SLOT_DISTANCE
from mainstem.storage.store_files.store_file import SEGMENT_SUFFIX, StoreFile, path_of, paths_of
from mainstem.storage.verifying.remaking import SET_ASIDE


def queue(*, gaps: bool = False) -> list[Batch]:
    """The batches of one queue, some of them large."""
    choice = random.Random(3)
    found: list[Batch] = []
    offset = 17
    for _ in range(150):
        found.append(
            make_batch(3, offset, records=2, size=choice.choice([80, 900, 9000]), timestamp=choice.randrange(1000))
        )
        offset += 2 + (gaps and choice.random() < 0.1)
    return found


class Damaged(Disks):
    """Two runs and a queue segment, and what their files were."""

    def __init__(self, root: Path, *, gaps: bool = False) -> None:
        super().__init__(root, 3)
        self.file: StoreFile = self.segment(queue(gaps=gaps))
        self.log, self.extents, self.index, self.timeindex = paths_of(self.file.name)
        self.before = {path: (self.store_dir / path).read_bytes() for path in self.paths()}

    def paths(self) -> set[str]:
        """Of files but those that are set aside."""
        below = (path.relative_to(self.store_dir) for path in self.store_dir.rglob("*") if path.is_file())
        return {str(path) for path in below if path.parts[0] != SET_ASIDE}

    def put(self, path: str, content: bytes) -> None:
        (self.store_dir / path).write_bytes(content)

    def now(self, path: str) -> bytes:
        return (self.store_dir / path).read_bytes()

    def aside(self) -> list[bytes]:
        """The files set aside."""
        return sorted(path.read_bytes() for path in (self.store_dir / SET_ASIDE).rglob("*") if path.is_file())

    def repair(self, *more: str) -> int:
        return run(["store", "repair", *self.options, *more])

    def is_sound(self) -> bool:
        return run(["store", "verify", *self.options]) == 0


@pytest.fixture
def disks(tmp_path: Path) -> Damaged:
    return Damaged(tmp_path)


def test_nothing_is_done_where_nothing_is_damaged(disks: Damaged, capsys: pytest.CaptureFixture[str]) -> None:
    assert disks.repair("--yes") == 0
    assert capsys.readouterr().out == "nothing is damaged\n"
    assert {path: disks.now(path) for path in disks.paths()} == disks.before
    assert not (disks.store_dir / SET_ASIDE).exists()


def test_kafkas_indexes_and_the_index_of_extents_are_made_from_the_batches(
    disks: Damaged, capsys: pytest.CaptureFixture[str]
) -> None:
    disks.flip(disks.index, 5)
    (disks.store_dir / disks.timeindex).unlink()
    disks.put(disks.extents, b"rotten")
    rotten = [disks.now(disks.index), b"rotten"]
    assert disks.repair() == 1, "it is told first"
    assert "With --yes these are made anew" in capsys.readouterr().out
    assert disks.now(disks.extents) == b"rotten"
    assert disks.repair("--yes", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    documented = documented_keys()["store repair"]
    assert keys_of(told, documented) == documented
    assert (told["ok"], set(told["made"]), told["refused"], told["findings"]) == (
        True, {disks.index, disks.timeindex, disks.extents}, [], [],
    )  # fmt: skip
    assert disks.is_sound()
    assert (disks.now(disks.index), disks.now(disks.timeindex), disks.now(disks.log)) == (
        disks.before[disks.index], disks.before[disks.timeindex], disks.before[disks.log],
    )  # fmt: skip
    assert disks.aside() == sorted(rotten)
    assert disks.paths() == set(disks.before), "nothing is left of the making"


def test_the_mark_is_written_from_the_manifest(disks: Damaged) -> None:
    for damage in ("one copy", "both", "none there"):
        if damage == "none there":
            (disks.store_dir / MARK_NAME).unlink()
        else:
            disks.flip(MARK_NAME, 9)
        if damage == "both":
            disks.flip(MARK_NAME, SLOT_DISTANCE + 9)
        assert disks.repair("--yes") == 0, damage
        assert disks.is_sound()
        assert disks.now(MARK_NAME) == disks.before[MARK_NAME], "as the last two changes left it"


def test_a_mark_without_a_copy_is_not_written_where_the_manifest_may_be_an_old_one(
    disks: Damaged, capsys: pytest.CaptureFixture[str]
) -> None:
    (disks.store_dir / MARK_NAME).unlink()
    disks.put("runs/newer.run", b"whatever")
    assert disks.repair("--yes") == 1
    assert "does not name 1 of the files here" in capsys.readouterr().out.replace("\n", " ")
    assert not (disks.store_dir / MARK_NAME).exists()


def test_a_mark_is_not_written_on_another_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disks = Damaged(tmp_path)
    empty = tmp_path / "unmounted"
    empty.mkdir()
    assert run(["store", "repair", "--write-dir", str(disks.write_dir), "--store-dir", str(empty), "--yes"]) == 1
    assert "is this the store's disk, and mounted?" in capsys.readouterr().out.replace("\n", " ")
    assert not (empty / MARK_NAME).exists()


def test_damaged_batches_and_runs_are_left_and_told(disks: Damaged, capsys: pytest.CaptureFixture[str]) -> None:
    disks.flip(disks.log, 3000)
    disks.flip("runs/2.run", 500)
    disks.flip(disks.index, 3)
    assert disks.repair("--yes", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["wanted"], told["made"]) == ([], [])
    assert {finding["path"] for finding in told["findings"]} == {disks.log, "runs/2.run"}
    assert {path for path in disks.paths() if disks.now(path) != disks.before[path]} == {
        disks.log, disks.index, "runs/2.run",
    }  # fmt: skip


@pytest.mark.parametrize("at", [3, 6, 7, 11, 15, 40], ids=["far", "gap", "offset", "length", "epoch", "timestamp"])
@pytest.mark.parametrize("batch", [0, 70])
def test_extents_are_not_made_of_batches_that_may_be_damaged(
    disks: Damaged, capsys: pytest.CaptureFixture[str], at: int, batch: int
) -> None:
    """A batch's own CRC covers neither its offset nor its leader epoch."""
    disks.put(disks.extents, b"rotten")
    place = sum(len(one.data) for one in queue()[:batch]) + at
    disks.flip(disks.log, place)
    assert disks.repair("--yes") == 1
    said = capsys.readouterr().out.replace("\n", " ")
    assert f"{disks.extents}: left as it is" in said
    assert disks.now(disks.extents) == b"rotten"
    assert disks.aside() == []
    disks.flip(disks.log, place)
    assert disks.repair("--yes") == 0
    assert disks.is_sound()


def test_extents_are_not_made_where_offsets_have_gaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disks = Damaged(tmp_path, gaps=True)
    disks.flip(disks.index, 3)
    assert disks.repair("--yes") == 0, "the extents say that they are right"
    disks.put(disks.extents, b"rotten")
    assert disks.repair("--yes") == 1
    assert "its offsets have gaps" in capsys.readouterr().out.replace("\n", " ")


def test_extents_are_not_made_of_other_batches(disks: Damaged, capsys: pytest.CaptureFixture[str]) -> None:
    """Sound ones, of the same size and offsets."""
    first = queue()[0]
    other = make_batch(3, first.base_offset, records=2, size=len(first.data), timestamp=77_777)
    disks.put(disks.log, other.data + disks.before[disks.log][len(other.data) :])
    disks.put(disks.extents, b"rotten")
    assert disks.repair("--yes") == 1
    assert "its batches are not those that the manifest has" in capsys.readouterr().out.replace("\n", " ")
    assert disks.now(disks.extents) == b"rotten"


def test_nothing_is_made_by_an_old_copy_of_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disks = Damaged(tmp_path)
    manifest = disks.write_dir / "manifest.sqlite"
    old = manifest.read_bytes()
    disks.segment(queue()[:10], -1)
    manifest.write_bytes(old)
    disks.flip(disks.index, 3)
    assert disks.repair("--yes", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["wanted"], told["made"]) == ([], [])
    assert any("it is an old copy" in finding["what"] for finding in told["findings"])
    assert disks.now(disks.index) != disks.before[disks.index]


def test_a_running_node_and_a_manifest_that_is_gone_are_told(
    disks: Damaged, capsys: pytest.CaptureFixture[str]
) -> None:
    import os

    held = lock(disks.write_dir)
    assert disks.repair("--yes") == 1
    assert "repair works on a stopped node" in capsys.readouterr().err
    os.close(held)
    (disks.write_dir / "manifest.sqlite").unlink()
    assert disks.repair("--yes") == 1
    assert "it is made anew from its copy on disk 2 (--manifest)" in capsys.readouterr().err


def test_a_damaged_manifest_is_told_and_nothing_is_made_by_it(
    disks: Damaged, capsys: pytest.CaptureFixture[str]
) -> None:
    (disks.write_dir / "manifest.sqlite").write_bytes(b"rotten" * 1000)
    disks.flip(disks.index, 3)
    assert disks.repair("--yes") == 1
    assert "the manifest cannot be read" in capsys.readouterr().out.replace("\n", " ")
    assert disks.now(disks.index) != disks.before[disks.index]
    assert path_of(disks.file.name).endswith(SEGMENT_SUFFIX)
