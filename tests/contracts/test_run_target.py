"""`RunTarget`: the simulated one, and one in an object store, show and hide a file as the local disk's does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.files import SimulatedFiles
from tests.fakes.splitting.run_target import SimulatedTarget

from mainstem.model import Buffer
from mainstem.storage.object_stores.errors import ObjectExists
from mainstem.storage.object_stores.local import LocalObjectStore
from mainstem.storage.object_stores.names import UNFINISHED
from mainstem.storage.shared_store.blocking_store import BlockingStore
from mainstem.storage.shared_store.object_target import ObjectTarget
from mainstem.storage.store_files.run_target import WINDOW_BYTES, LocalRunTarget, RunTarget
from mainstem.storage.store_files.store_file import TEMPORARY_INFIX
from mainstem.storage.store_files.write_pace import WritePace

NAME = "a.run"


class Directory(ABC):
    """The directories in which targets write."""

    leaves = False
    """An abandoned file lies there under a temporary name."""
    replaces = True
    """A second file of a name takes the place of the first; otherwise it is refused."""

    @abstractmethod
    def target(self) -> RunTarget: ...

    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """All that lie there, by name."""

    def finished(self) -> dict[str, bytes]:
        return {name: content for name, content in self.files().items() if TEMPORARY_INFIX not in name}


class OnDisk(Directory):
    def __init__(self, path: Path) -> None:
        self._path = path

    def target(self) -> RunTarget:
        return LocalRunTarget(self._path, NAME)

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self._path.iterdir()}


class Simulated(Directory):
    def __init__(self, *, leaves: bool) -> None:
        self.leaves = leaves
        self._disk = SimulatedFiles()

    def target(self) -> RunTarget:
        return SimulatedTarget(self._disk, f"runs/{NAME}", leaves=self.leaves)

    def files(self) -> dict[str, bytes]:
        self._disk.crash()  # what is not durable is nothing
        return {path.removeprefix("runs/"): self._disk.content(path) for path in self._disk.paths()}


class InObjectStore(Directory):
    def __init__(self, path: Path, store: BlockingStore) -> None:
        self._path = path
        self._store = store
        self.replaces = store.part_bytes < STREAMED_FROM_BYTES

    def target(self) -> RunTarget:
        return ObjectTarget(self._store, f"runs/{NAME}", WritePace())

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self._path.glob("runs/*")}

    def finished(self) -> dict[str, bytes]:
        return {name: content for name, content in self.files().items() if not name.startswith(UNFINISHED)}


STREAMED_FROM_BYTES = 1 << 20
PART_BYTES = {"objects, in one request": STREAMED_FROM_BYTES, "objects, streamed": 8}


@pytest.fixture(params=["local", "simulated", "simulated, leaving what is abandoned", *PART_BYTES])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Directory]:
    if request.param == "local":
        yield OnDisk(tmp_path / "runs")
    elif request.param in PART_BYTES:
        with BlockingStore(LocalObjectStore(tmp_path), part_bytes=PART_BYTES[request.param]) as store:
            yield InObjectStore(tmp_path, store)
    else:
        yield Simulated(leaves=request.param != "simulated")


def test_a_finished_file_has_all_that_was_written_and_before_there_is_none(directory: Directory) -> None:
    target = directory.target()
    pieces: list[Buffer] = [b"head", memoryview(bytearray(b"middle")), bytes(range(256)) * (WINDOW_BYTES // 200), b""]
    for piece in pieces:
        target.write(piece)
        assert directory.finished() == {}
    target.finish()
    assert directory.files() == {NAME: b"".join(map(bytes, pieces))}


def test_the_callers_memory_is_the_callers_again(directory: Directory) -> None:
    target = directory.target()
    memory = bytearray(b"once")
    target.write(memory)
    memory[:] = b"more"
    target.write(memory)
    target.finish()
    assert directory.files() == {NAME: b"oncemore"}


def test_an_empty_file_is_a_file(directory: Directory) -> None:
    directory.target().finish()
    assert directory.files() == {NAME: b""}


def test_what_is_abandoned_is_no_file_and_may_be_abandoned_again(directory: Directory) -> None:
    target = directory.target()
    target.write(b"half of it")
    target.abandon()
    target.abandon()
    assert directory.finished() == {}
    assert list(directory.files().values()) == ([b"half of it"] if directory.leaves else [])


def test_a_finished_file_is_not_abandoned_any_more(directory: Directory) -> None:
    target = directory.target()
    target.write(b"all of it")
    target.finish()
    target.abandon()
    assert directory.files() == {NAME: b"all of it"}


def test_a_second_file_of_the_name_takes_the_place_of_the_first_or_is_refused(directory: Directory) -> None:
    def write(content: bytes) -> None:
        target = directory.target()
        target.write(content)
        target.finish()

    write(b"the first")
    if directory.replaces:
        write(b"the second")
        assert directory.files() == {NAME: b"the second"}
    else:
        with pytest.raises(ObjectExists):
            write(b"the second")
        assert directory.files() == {NAME: b"the first"}
