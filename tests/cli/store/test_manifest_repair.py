"""`mainstem store repair --manifest`: a lost manifest is made anew, nothing is deleted, what is not safe is refused."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import google_crc32c
import pytest
from tests.cli.documented import documented_keys, keys_of
from tests.cli.store.test_store_repair import Damaged, queue
from tests.cli.store.test_store_verify import SystemClock

from mainstem.cli.main import run
from mainstem.node.node import lock
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.errors import FormatError
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.manifest.database.manifest_database import Contents, Database
from mainstem.storage.queue_store.manifest.manifest_rows import COPY_DIRECTORY
from mainstem.storage.queue_store.manifest.store_mark import MARK_NAME
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.verifying.remaking import SET_ASIDE


class Lost(Damaged):
    """A store whose manifest is lost in one way or another."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.manifest = self.write_dir / "manifest.sqlite"
        self.lost = self.contents()

    def contents(self) -> Contents:
        return Database(str(self.manifest)).read()

    def repair_manifest(self, *more: str) -> int:
        return self.repair("--manifest", *more)

    def set_aside(self) -> list[bytes]:
        return [path.read_bytes() for path in (self.write_dir / SET_ASIDE).rglob("*.sqlite")]


@pytest.fixture
def disks(tmp_path: Path) -> Lost:
    return Lost(tmp_path)


def opened(disks: Lost) -> str:
    """Open the store as a node does, and say why not; empty: it does."""

    async def scenario() -> None:
        files = DiskFiles(disks.store_dir)
        try:
            store = await QueueStore.open(files, str(disks.manifest), QueueStoreConfig(), SystemClock())
            await store.close()
        finally:
            await files.close()

    try:
        asyncio.run(scenario())
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.parametrize("how", ["gone", "damaged", "empty", "old"])
def test_a_lost_manifest_is_made_anew(disks: Lost, capsys: pytest.CaptureFixture[str], how: str) -> None:
    if how == "gone":
        disks.manifest.unlink()
    elif how == "damaged":
        disks.manifest.write_bytes(b"rotten" * 1000)
    elif how == "empty":
        disks.manifest.write_bytes(b"")
    else:
        old = disks.manifest.read_bytes()
        disks.segment(queue()[:10], -1)
        disks.lost = disks.contents()
        disks.manifest.write_bytes(old)
    before = {path: disks.now(path) for path in disks.paths()}
    was = disks.manifest.read_bytes() if disks.manifest.exists() else None
    assert "store repair --manifest" in opened(disks)
    assert disks.repair_manifest() == 1, "it is told first"
    assert "With --yes the manifest is made anew" in capsys.readouterr().out
    assert [path.name for path in disks.write_dir.iterdir() if "manifest" in path.name] == ["manifest.sqlite"][
        : was is not None
    ]
    assert was is None or disks.manifest.read_bytes() == was
    assert disks.repair_manifest("--yes", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    documented = documented_keys()["store repair --manifest"]
    assert keys_of(told, documented) == documented
    assert (told["ok"], told["made"], told["changes"], told["files"], told["absent"], told["faults"]) == (
        True, True, disks.lost.changes, len(disks.lost.files), [], [],
    )  # fmt: skip
    assert disks.contents() == disks.lost
    assert disks.set_aside() == ([was] if was is not None else [])
    assert opened(disks) == ""
    assert disks.is_sound()
    assert {path: disks.now(path) for path in disks.paths()} == before
    capsys.readouterr()
    assert disks.repair_manifest("--yes") == 0
    assert capsys.readouterr().out == "the manifest is sound, and is left as it is\n"


def test_files_that_are_missing_and_that_do_not_count_are_told(disks: Lost, capsys: pytest.CaptureFixture[str]) -> None:
    disks.manifest.unlink()
    (disks.store_dir / "runs/1.run").unlink()
    disks.put("runs/2.run", disks.now("runs/2.run")[:-1])
    disks.put("runs/other.run", b"12345")
    assert disks.repair_manifest("--json") == 1
    told = json.loads(capsys.readouterr().out)
    size = {file.name: file.bytes for file in disks.lost.files}
    assert told["absent"] == [
        {"path": "runs/1.run", "bytes": None, "bytes_expected": size["1.run"],
         "blocks": [{"group": 0, "after": 1, "upto": 2}]},
        {"path": "runs/2.run", "bytes": size["2.run"] - 1, "bytes_expected": size["2.run"],
         "blocks": [{"group": 0, "after": 2, "upto": 3}]},
    ]  # fmt: skip
    unnamed = {one["path"]: one["kind"] for one in told["unnamed"]}
    assert unnamed == {"runs/other.run": "orphan"}
    assert disks.repair_manifest("--yes") == 0
    text = capsys.readouterr().out
    assert "1.run: missing, blocks of write group 0 (1, 2]" in text
    assert "runs/other.run (orphan, 5 B)" in text
    assert disks.contents() == disks.lost


def test_a_first_change_that_the_mark_does_not_know_is_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The node died before it had the change in its copy: the blocks are in the journal, and the run does not count."""
    write_dir, store_dir = tmp_path / "write", tmp_path / "store"
    where = ("--write-dir", str(write_dir), "--store-dir", str(store_dir))

    async def scenario() -> None:
        files = DiskFiles(store_dir)
        store = await QueueStore.open(files, str(write_dir / "manifest.sqlite"), QueueStoreConfig(), SystemClock())
        await store.close()
        await files.close()

    write_dir.mkdir()
    store_dir.mkdir()
    asyncio.run(scenario())
    identity = Database(str(write_dir / "manifest.sqlite")).read().identity
    (write_dir / "manifest.sqlite").unlink()
    (store_dir / "runs").mkdir(exist_ok=True)
    (store_dir / "runs/0.run").write_bytes(b"written, and not recorded")
    assert run(["store", "repair", "--manifest", "--yes", *where]) == 0
    assert "runs/0.run (orphan, 25 B)" in capsys.readouterr().out
    made = Database(str(write_dir / "manifest.sqlite")).read()
    assert (made.identity, made.changes, made.files) == (identity, 0, [])


def test_a_copy_that_ends_before_the_mark_is_refused(disks: Lost, capsys: pytest.CaptureFixture[str]) -> None:
    disks.manifest.unlink()
    copy = disks.store_dir / COPY_DIRECTORY
    newest = max(copy.iterdir())
    content = newest.read_bytes()
    newest.unlink()
    assert disks.repair_manifest("--yes") == 1
    said = capsys.readouterr().err
    assert "the copy of the manifest ends with change 3, and the store has seen 4" in said
    assert "mainstem cluster replace" in said
    newest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert disks.repair_manifest("--yes") == 1
    assert f"{COPY_DIRECTORY}/{newest.name}: it is damaged" in capsys.readouterr().err
    shutil.rmtree(copy)
    assert disks.repair_manifest("--yes") == 1
    assert "store_dir has no copy of the manifest that serves" in capsys.readouterr().err
    assert not disks.manifest.exists()


def test_another_disk_and_a_node_that_runs_are_refused(
    disks: Lost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Lost(tmp_path / "other")
    options = ["--write-dir", str(disks.write_dir), "--store-dir", str(other.store_dir)]
    assert run(["store", "repair", "--manifest", "--yes", *options]) == 1
    assert f"is of store {disks.lost.identity}" in capsys.readouterr().err
    held = lock(disks.write_dir)
    assert disks.repair_manifest("--yes") == 1
    assert "repair works on a stopped node" in capsys.readouterr().err
    os.close(held)
    disks.manifest.unlink()
    (disks.store_dir / MARK_NAME).unlink()
    assert disks.repair_manifest("--yes") == 1
    assert "there is no store.mark" in capsys.readouterr().err
    assert not disks.manifest.exists()


def test_a_copy_that_is_damaged_is_found_set_aside_and_begun_anew(
    disks: Lost, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # no path is wrapped
    path = f"{COPY_DIRECTORY}/{1:020d}.changes"
    disks.flip(path, 70)
    assert not disks.is_sound()
    assert path in capsys.readouterr().out
    assert disks.repair("--yes") == 0
    assert disks.is_sound()
    assert not (disks.store_dir / COPY_DIRECTORY).exists()
    assert any(path.name.endswith(".changes") for path in (disks.store_dir / SET_ASIDE).rglob("*"))

    async def a_node() -> None:
        files = DiskFiles(disks.store_dir)
        store = await QueueStore.open(files, str(disks.manifest), QueueStoreConfig(), SystemClock())
        await store.copy.renew()
        await store.close()
        await files.close()

    asyncio.run(a_node())
    disks.manifest.unlink()
    assert disks.repair_manifest("--yes") == 0
    assert disks.contents() == disks.lost


def test_a_copy_that_says_something_else_is_found(disks: Lost, capsys: pytest.CaptureFixture[str]) -> None:
    other = disks.store_dir / COPY_DIRECTORY / f"{4:020d}.changes"
    content = other.read_bytes()
    at = content.index(b"forever")
    body = content[64:at] + b"FOREVER" + content[at + 7 :]
    head = content[:56] + google_crc32c.value(body).to_bytes(4, "little")
    other.write_bytes(head + google_crc32c.value(head).to_bytes(4, "little") + body)
    assert not disks.is_sound()
    assert "does not say what the manifest says" in capsys.readouterr().out.replace("\n", " ")


def test_a_repair_that_is_killed_leaves_a_lost_manifest_or_the_new_one(tmp_path: Path) -> None:
    """Killed behind each of its steps: a node refuses to start, or all is there, and a second repair succeeds."""
    disks = Lost(tmp_path)
    disks.manifest.write_bytes(b"rotten" * 1000)
    (disks.write_dir / "manifest.sqlite-wal").write_bytes(b"of another time")
    kept = tmp_path / "kept"
    shutil.copytree(disks.write_dir, kept)
    outcomes = []
    for step in range(1, 9):
        shutil.rmtree(disks.write_dir)
        shutil.copytree(kept, disks.write_dir)
        killed = subprocess.run(
            [sys.executable, "-c", _KILLED, str(step), "store", "repair", "--manifest", "--yes", *disks.options],
            capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        whole = opened(disks) == ""
        outcomes.append((killed.returncode, whole))
        assert whole == _is_whole(disks)
        assert disks.repair_manifest("--yes") == 0
        assert disks.contents() == disks.lost
        assert opened(disks) == ""
        if killed.returncode == 0:
            break
    assert outcomes[-1] == (0, True)
    assert (-9, False) in outcomes
    assert (-9, True) in outcomes


def _is_whole(disks: Lost) -> bool:
    try:
        return disks.contents() == disks.lost
    except FormatError:
        return False


_KILLED = """
import os, signal, sys
left = int(sys.argv[1])
rename = os.rename
def counting(source, target):
    global left
    rename(source, target)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
os.rename = counting
from mainstem.cli.main import run
sys.exit(run(sys.argv[2:]))
"""
