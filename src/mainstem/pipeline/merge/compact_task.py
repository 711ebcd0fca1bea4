"""The work of executors in a compaction: they read the keys of files, and write files without the records that go.

Both are functions over Arrow batches, as Spark's `mapInArrow` takes them. Work and results are packed messages, so
that a driver and its executors agree on every field. A damaged input is reported to the node, which mends it; the job
then fails, and nothing of the pass counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy

from mainstem.pipeline.link.node_allowance import NodeAllowance
from mainstem.pipeline.link.node_link import NodeLink
from mainstem.pipeline.merge.merge_task import MergeSettings, TaskFiles, task_files
from mainstem.rpc.errors import RpcError
from mainstem.storage.compacting.compact_files import compact_file, scan_file
from mainstem.storage.compacting.compact_plan import INPUTS_MAX, QUEUE_ROW
from mainstem.storage.compacting.decided import decided
from mainstem.storage.compacting.ended_markers import TransactionColumns, scan_markers
from mainstem.storage.compacting.pass_places import KeyColumns, Staying, checked
from mainstem.storage.extents.aborted import ABORTED_ROW
from mainstem.storage.merging.merge_inputs import InputDamaged, InputFile
from mainstem.storage.store_files.store_file import StoreFile

if TYPE_CHECKING:
    import pyarrow

WORK_SCHEMA = "work binary"
KEYS_SCHEMA = "queue long, high long, low long, place long"
TRANSACTIONS_SCHEMA = "queue long, producer long, place long"
DONE_SCHEMA = "done binary"


class FileWork(msgspec.Struct, frozen=True, kw_only=True):
    """An input of a pass."""

    settings: MergeSettings
    pass_id: str
    number: int
    file: StoreFile
    paths: InputFile
    queues: bytes
    """`QUEUE_ROW`s, of the queues of the pass that may be in the file."""
    key: bytes
    """Of the hashes, the same for all inputs."""
    now_ms: int
    covered: tuple[int, ...]
    """Topics of which no batch is left out."""
    aborted: bytes = b""
    """`ABORTED_ROW`s, of the same queues."""
    joined: bool = False
    """Queue segments are one file each."""


class DecideWork(msgspec.Struct, frozen=True, kw_only=True):
    """A pass of which is not known yet how far its transactions are decided."""

    settings: MergeSettings
    pass_id: str
    inputs: tuple[InputFile, ...]
    queues: bytes
    """`QUEUE_ROW`s."""


class DecideDone(msgspec.Struct, frozen=True):
    """The same queues, each up to where that is known."""

    queues: bytes
    aborted: bytes
    """`ABORTED_ROW`s."""
    has_transactions: bool


class FileDone(msgspec.Struct, frozen=True):
    """The outcome of one input."""

    number: int
    outputs: tuple[StoreFile, ...]
    """Durable, and recorded nowhere yet."""


def decide(packed: bytes) -> bytes:
    """A `DecideWork` in, a `DecideDone` out."""
    work = msgspec.msgpack.decode(packed, type=DecideWork)
    with _files_of(work.settings, work.pass_id, work.inputs) as (files, _allow):
        found = decided(work.inputs, numpy.frombuffer(work.queues, QUEUE_ROW), files.reader)
    return msgspec.msgpack.encode(DecideDone(*found.packed()))


def scan_files(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """`FileWork`s in (`WORK_SCHEMA`), the keys of their records out (`KEYS_SCHEMA`)."""
    for batch in batches:
        for packed in batch.column(0).to_pylist():
            work = msgspec.msgpack.decode(packed, type=FileWork)
            queues = numpy.frombuffer(work.queues, QUEUE_ROW)
            aborted = numpy.frombuffer(work.aborted, ABORTED_ROW)
            with _files_of(work.settings, work.pass_id, [work.paths]) as (files, allow):
                for columns in scan_file(
                    work.paths, work.number, queues, work.key, work.now_ms, allow, files.reader, aborted
                ):
                    yield _as_arrow(columns)


def find_transactions(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """`FileWork`s in (`WORK_SCHEMA`), the batches of their transactions out (`TRANSACTIONS_SCHEMA`)."""
    for batch in batches:
        for packed in batch.column(0).to_pylist():
            work = msgspec.msgpack.decode(packed, type=FileWork)
            queues = numpy.frombuffer(work.queues, QUEUE_ROW)
            with _files_of(work.settings, work.pass_id, [work.paths]) as (files, allow):
                for columns in scan_markers(work.paths, work.number, queues, work.now_ms, allow, files.reader):
                    yield _as_arrow(columns)


def write_files(works: Mapping[int, bytes], batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """The records that stay and the empty markers in (queue and place, sorted by input, queue and place, with a row for
    each input at least), a `FileDone` of each input out (`DONE_SCHEMA`). `works` has the `FileWork` of each input."""
    import pyarrow

    for number, staying in _by_input(batches):
        checked(staying, number)
        work = msgspec.msgpack.decode(works[number], type=FileWork)
        queues = numpy.frombuffer(work.queues, QUEUE_ROW)
        with _files_of(work.settings, work.pass_id, [work.paths]) as (files, allow):
            outputs = compact_file(
                work.file,
                work.paths,
                queues,
                staying,
                files.open_file,
                covered=work.covered,
                joined=work.joined,
                reader=files.reader,
                announce=files.announce,
                allow=allow,
            )
        done = msgspec.msgpack.encode(FileDone(number, tuple(outputs)))
        yield pyarrow.RecordBatch.from_pydict({"done": pyarrow.array([done], pyarrow.binary())})


@contextmanager
def _files_of(
    settings: MergeSettings, pass_id: str, inputs: Sequence[InputFile]
) -> Iterator[tuple[TaskFiles, NodeAllowance]]:
    """The task's files, and the allowance of the node; damage met meanwhile is reported to it."""
    node = NodeLink(settings.rpc, "compaction task", settings.tls)
    try:
        with task_files(settings, node, inputs) as files:
            yield files, NodeAllowance(node, upkeep=True)
    except InputDamaged as error:
        try:
            node.merge_damaged(pass_id, error.name, str(error))
        except RpcError as refused:
            raise error from refused
        raise
    finally:
        node.close()


def _by_input(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[tuple[int, Staying]]:
    """The rows of each input, which follow each other."""
    held: list[Staying] = []
    current = -1
    for batch in batches:
        queue, place = (batch.column(at).to_numpy(zero_copy_only=False) for at in (0, 1))
        inputs = place & (INPUTS_MAX - 1)
        edges = [0, *(numpy.flatnonzero(inputs[1:] != inputs[:-1]) + 1).tolist(), len(inputs)]
        for first, end in pairwise(edges):
            if first == end:
                continue
            number = int(inputs[first])
            if number != current and held:
                yield current, _joined(held)
                held = []
            current = number
            held.append(Staying(queue[first:end], place[first:end]))
    if held:
        yield current, _joined(held)


def _joined(pieces: list[Staying]) -> Staying:
    return Staying(*(numpy.concatenate(columns) for columns in zip(*pieces, strict=True)))


def _as_arrow(columns: KeyColumns | TransactionColumns) -> pyarrow.RecordBatch:
    import pyarrow

    arrays = [pyarrow.array(numpy.ascontiguousarray(column)) for column in columns]
    return pyarrow.RecordBatch.from_arrays(arrays, names=list(columns._fields))
