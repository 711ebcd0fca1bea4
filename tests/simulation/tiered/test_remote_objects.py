"""The observer of the object store finds each way in which the store and the logs can part."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from tests.fakes.clock import FakeClock
from tests.fakes.object_store import SimulatedBucket
from tests.simulation.oracle import Violation
from tests.simulation.tiered.remote_objects import RemoteObjects

from mainstem.rpc.messages.split import FileDescription
from mainstem.storage.remote.chain.chain_format import encode_change, encode_image
from mainstem.storage.remote.decided.remote_state import Notes, RemotePosition
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.write_groups.control import RemoteChanged, RemoteSpan

FOLDER = "cluster/groups/2"
NAME = "one-0001.pack"


def file_of(name: str, size: int = 7) -> FileDescription:
    return FileDescription(
        name=name, retention_class="7+remote", bytes=size, batch_bytes=5, batch_count=1, record_count=1, queue_count=1,
        min_timestamp=1, max_timestamp=2, level=1, group=2, last_queue=5, first_offset=0,
    )  # fmt: skip


def at_once(check: Callable[[], None]) -> None:
    check()


class Observed:
    """A bucket, its observer, and the log of write group 2."""

    def __init__(self) -> None:
        self.bucket = SimulatedBucket(FakeClock(), random.Random(1))
        self.objects = RemoteObjects(self.bucket, at_once, lambda queue_id, offset: True)
        self.index = 0

    def change(self, number: int, epoch: int = 3, upto: int = 10, **what: tuple[object, ...]) -> RemoteChanged:
        self.index += 1
        change = RemoteChanged(number, epoch, upto, **what)  # type: ignore[arg-type]
        self.objects.changed(2, self.index, 0, change)
        return change

    def uploaded(self) -> None:
        """One file counts."""
        self.change(1, intended=(NAME,))
        self.bucket.put(f"{FOLDER}/files/packed/{NAME}", b"content")
        self.change(2, spans=(RemoteSpan(0, 10, (file_of(NAME),)),))
        assert self.objects.tier(2).files.keys() == {NAME}


@pytest.fixture
def observed() -> Observed:
    return Observed()


def test_what_counts_is_in_the_store(observed: Observed) -> None:
    observed.uploaded()
    observed.objects.check_store()
    observed.objects.check_files("node 1", 2, [(0, 10, NAME)])
    assert observed.objects.unfinished() == []


def test_a_file_that_counts_and_is_not_there_is_found(observed: Observed) -> None:
    observed.change(1, intended=(NAME,))
    with pytest.raises(Violation, match=f"{NAME} counts, and packed/{NAME} is not in the store"):
        observed.change(2, spans=(RemoteSpan(0, 10, (file_of(NAME),)),))


def test_a_file_that_is_not_there_as_a_whole_is_found(observed: Observed) -> None:
    observed.change(1, intended=(NAME,))
    observed.bucket.put(f"{FOLDER}/files/packed/{NAME}", b"half")
    with pytest.raises(Violation, match="has 4 bytes in the store, not 7"):
        observed.change(2, spans=(RemoteSpan(0, 10, (file_of(NAME),)),))


def test_a_file_that_is_deleted_before_it_is_gone_is_found(observed: Observed) -> None:
    observed.uploaded()
    with pytest.raises(Violation, match="is deleted, and the log of write group 2 counts it"):
        observed.bucket.remove(f"{FOLDER}/files/packed/{NAME}")


def test_a_name_that_is_written_twice_is_found(observed: Observed) -> None:
    observed.uploaded()
    observed.bucket.put(f"{FOLDER}/files/packed/{NAME}", b"content")
    with pytest.raises(Violation, match="is written with other bytes than before"):
        observed.bucket.put(f"{FOLDER}/files/packed/{NAME}", b"CONTENT")


def test_a_change_that_the_log_does_not_have_is_found(observed: Observed) -> None:
    first = observed.change(1, intended=(NAME,))
    observed.bucket.put(f"{FOLDER}/chain/{1:020d}", encode_change(2, first))
    ahead = msgspec.structs.replace(first, number=2)
    with pytest.raises(Violation, match="the log has 1 changes"):
        observed.bucket.put(f"{FOLDER}/chain/{2:020d}", encode_change(2, ahead))
    second = observed.change(2, intended=("two-0002.pack",))
    observed.bucket.put(f"{FOLDER}/chain/{2:020d}", encode_change(2, second))
    with pytest.raises(Violation, match="says something else than the log"):
        observed.bucket.put(f"{FOLDER}/chain/{2:020d}", encode_change(2, ahead))


def test_an_image_that_says_something_else_is_found(observed: Observed) -> None:
    observed.uploaded()
    file = StoreFile.of(file_of(NAME))
    whole, empty = ([(0, 10, file)], [])  # type: list[tuple[int, int, StoreFile]], list[tuple[int, int, StoreFile]]
    name, notes = f"{FOLDER}/images/{2:020d}", Notes({}, {})
    observed.bucket.put(name, b"".join(encode_image(2, RemotePosition(2, 3, 10), notes, 1, whole)))
    for position, files in ((RemotePosition(2, 3, 11), whole), (RemotePosition(2, 3, 10), empty)):
        with pytest.raises(Violation, match="says something else than the log"):
            observed.bucket.put(name, b"".join(encode_image(2, position, notes, len(files), files)))


def test_a_replica_that_is_elsewhere_than_the_log_is_found(observed: Observed) -> None:
    observed.uploaded()
    observed.objects.check_position("node 1", 2, 1, 0, (2, 3, 10), (), ())  # it was further before it was started again
    for position in ((1, 3, 10), (3, 3, 10), (2, 2, 10), (2, 3, 11)):
        with pytest.raises(Violation, match=r"the log at|others were at"):
            observed.objects.check_position("node 1", 2, 2, 0, position, (), ())
    with pytest.raises(Violation, match="unlike the log"):
        observed.objects.check_position("node 1", 2, 2, 0, (2, 3, 10), (NAME,), ())
    with pytest.raises(Violation, match=r"counts .* that the log does not"):
        observed.objects.check_files("node 1", 2, [(0, 9, NAME)])


def test_a_change_takes_no_effect_that_breaks_a_rule(observed: Observed) -> None:
    observed.uploaded()
    before = observed.objects.tier(2).position
    observed.change(2, intended=("a.pack",))
    observed.change(4, intended=("a.pack",))
    observed.change(3, epoch=2, intended=("a.pack",))
    observed.change(3, upto=9, intended=("a.pack",))
    observed.change(3, epoch=4, spans=(RemoteSpan(10, 20, (file_of("b.pack"),)),))
    observed.change(3, deleted=(NAME,))
    assert observed.objects.tier(2).position == before
    assert observed.objects.changes["without effect"] == 6


def test_blocks_that_count_twice_are_found_where_all_files_are_in_the_store(observed: Observed) -> None:
    observed.uploaded()
    observed.objects.has_all = True
    other = "two-0002.pack"
    observed.change(3, intended=(other,))
    observed.bucket.put(f"{FOLDER}/files/packed/{other}", b"content")
    with pytest.raises(Violation, match=r"files count for blocks \(0, 10\], and others for \(9, 20\]"):
        observed.change(4, upto=20, spans=(RemoteSpan(9, 20, (file_of(other),)),))
    observed.change(4, upto=20, spans=(RemoteSpan(10, 20, (file_of(other),)),))
    assert observed.objects.tier(2).files.keys() == {NAME, other}


def test_an_orphan_is_found(observed: Observed) -> None:
    observed.uploaded()
    observed.bucket.put(f"{FOLDER}/files/packed/orphan-0001.pack", b"content")
    with pytest.raises(Violation, match="nobody counts on what is in the store"):
        observed.objects.check_store()


def test_a_file_that_the_store_has_lost_goes_all_the_same(observed: Observed) -> None:
    observed.uploaded()
    observed.bucket.lose(f"{FOLDER}/files/packed/{NAME}")
    observed.change(3, gone=(NAME,))  # the store has lost it: nobody can say what was in it
    assert observed.objects.unfinished() == [f"write group 2: {NAME}"]
    observed.change(4, deleted=(NAME,))
    assert observed.objects.unfinished() == []
