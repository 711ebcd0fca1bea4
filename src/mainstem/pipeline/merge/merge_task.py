"""The work of executors in a merge: they measure it, or write some of its files.

Work and results are JSON, so that a driver and its executors agree on every field, whatever pickles functions between
them. A damaged input is a result, not a failure: to try again would not mend it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy

from mainstem.pipeline.errors import NamesRefused
from mainstem.pipeline.link.node_allowance import NodeAllowance
from mainstem.pipeline.link.node_link import NodeLink
from mainstem.pipeline.link.store_patience import patient
from mainstem.rpc.wire.tls import RpcTlsConfig
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.extents.offset_gaps import unpacked
from mainstem.storage.merging.merge_files import OpenFile, merge_files
from mainstem.storage.merging.merge_inputs import InputDamaged, InputFile, InputReader, OpenInputs
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.merging.merge_liveness import Liveness, LiveOffsets
from mainstem.storage.merging.merge_measure import Measured, MergeTask, TopicFacts, measure
from mainstem.storage.object_stores.errors import ObjectStoreError
from mainstem.storage.shared_store.shared_store import SharedStore
from mainstem.storage.store_files.announcement import Announce, unannounced
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.run_target import LocalRunTarget
from mainstem.storage.store_files.store_file import StoreFile, index_path_of, path_of


class MergeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that tasks need to know of their node."""

    rpc: str
    store_dir: str
    bytes_per_second: int = 0
    """Per task; 0 is unpaced, but for what the node grants."""
    tls: RpcTlsConfig = RpcTlsConfig()
    shared_store: SharedStore | None = None
    """The store in which files are read and written, without how it is reached; None: `store_dir`."""


class MergeJob(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the work that all tasks of a merge share."""

    settings: MergeSettings
    merge_id: str
    group: int
    level: int
    inputs: tuple[InputFile, ...]
    """In the order of their blocks."""
    packed_bytes: int
    task_bytes: int
    output_files_max: int = 0
    joined: bool = False
    """Queue segments are one file each."""


class MeasureWork(msgspec.Struct, frozen=True):
    job: MergeJob
    topics: dict[int, TopicFacts]
    goes_on: bool = False
    """If one task can write all files, this one does: a task costs as much of the processor as to merge 30 MB."""


class FilesWork(msgspec.Struct, frozen=True):
    job: MergeJob
    task: MergeTask


class Damage(msgspec.Struct, frozen=True):
    """An input whose bytes are not those that were written."""

    name: str
    reason: str


class FilesDone(msgspec.Struct, frozen=True):
    files: tuple[StoreFile, ...] = ()
    """Durable, and recorded nowhere yet."""
    damage: Damage | None = None
    failure: str = ""


class MeasureDone(msgspec.Struct, frozen=True):
    measured: Measured | None = None
    damage: Damage | None = None
    failure: str = ""
    """Why it is neither: the shared store is out, or the node announces no files of this write group."""
    wrote: FilesDone | None = None
    """The outcome of the only task, if it is done."""


def run_measure(work: bytes) -> bytes:
    """A `MeasureWork` in, a `MeasureDone` out."""
    asked = msgspec.json.decode(work, type=MeasureWork)
    job = asked.job
    lines = MergeLines()._replace(
        packed_bytes=job.packed_bytes, task_bytes=job.task_bytes, output_files_max=job.output_files_max
    )
    node = NodeLink(job.settings.rpc, "merge task", job.settings.tls)
    try:
        with task_files(job.settings, node, job.inputs) as files:
            measured = measure(job.inputs, _liveness(node, job.merge_id), asked.topics, lines, files.reader)
        goes_on = asked.goes_on and len(measured.tasks) == 1
        done = MeasureDone(measured, wrote=_write(FilesWork(job, measured.tasks[0]), node) if goes_on else None)
    except InputDamaged as error:
        done = MeasureDone(damage=Damage(error.name, str(error)))
    except (ObjectStoreError, NamesRefused) as error:
        done = MeasureDone(failure=str(error))
    finally:
        node.close()
    return msgspec.json.encode(done)


def run_files(work: bytes) -> bytes:
    """A `FilesWork` in, a `FilesDone` out."""
    asked = msgspec.json.decode(work, type=FilesWork)
    node = NodeLink(asked.job.settings.rpc, "merge task", asked.job.settings.tls)
    try:
        return msgspec.json.encode(_write(asked, node))
    finally:
        node.close()


def _write(asked: FilesWork, node: NodeLink) -> FilesDone:
    job = asked.job
    mine = [job.inputs[chosen.input] for chosen in asked.task.rows]

    def write() -> list[StoreFile]:
        with task_files(job.settings, node, mine) as files:
            return merge_files(
                asked.task,
                job.inputs,
                _liveness(node, job.merge_id),
                files.open_file,
                group=job.group,
                level=job.level,
                joined=job.joined,
                reader=files.reader,
                announce=files.announce,
                allow=NodeAllowance(node, upkeep=True),
            )

    try:
        return FilesDone(tuple(patient(job.settings.shared_store, node, write)))
    except InputDamaged as error:
        return FilesDone(damage=Damage(error.name, str(error)))
    except (ObjectStoreError, NamesRefused) as error:
        return FilesDone(failure=str(error))


class TaskFiles(NamedTuple):
    """How a task reads its inputs, and writes its outputs."""

    reader: InputReader
    announce: Announce
    open_file: OpenFile


@contextmanager
def task_files(settings: MergeSettings, node: NodeLink, inputs: Sequence[InputFile]) -> Iterator[TaskFiles]:
    """The files of one task, whose indexes it reads in the order of `inputs`."""
    if settings.shared_store is None:
        with OpenInputs() as opened:
            yield TaskFiles(opened, unannounced, target_opener(settings))
        return
    from mainstem.storage.shared_store.announced_files import AnnouncedFiles
    from mainstem.storage.shared_store.blocking_store import BlockingStore
    from mainstem.storage.shared_store.object_inputs import ObjectInputs

    with (
        BlockingStore.open(node.reached(settings.shared_store)) as store,
        closing(ObjectInputs(store, [file.index_path for file in inputs])) as reader,
    ):
        files = AnnouncedFiles(store, node.intend, bytes_per_second=settings.bytes_per_second)
        yield TaskFiles(reader, files.announce, files.open)


def target_opener(settings: MergeSettings) -> OpenFile:
    """Opens files of the queue store for writing."""
    root = Path(settings.store_dir)

    def open_file(path: str) -> LocalRunTarget:
        whole = root / path
        return LocalRunTarget(whole.parent, whole.name, bytes_per_second=settings.bytes_per_second)

    return open_file


def input_file(settings: MergeSettings, group: int, name: str) -> InputFile:
    """A file that this write group needs, where executors find it."""
    if settings.shared_store is not None:
        return InputFile(name, object_of(group, path_of(name)), object_of(group, index_path_of(name)))
    return InputFile(name, f"{settings.store_dir}/{path_of(name)}", f"{settings.store_dir}/{index_path_of(name)}")


def _liveness(node: NodeLink, merge_id: str) -> Liveness:
    def ask(queue_ids: QueueIds) -> LiveOffsets:
        content = node.merge_live(merge_id, numpy.ascontiguousarray(queue_ids, "<u8").tobytes())
        bounds, gaps = content[: 16 * len(queue_ids)], content[16 * len(queue_ids) :]
        starts, ends = numpy.frombuffer(bounds, "<i8").astype(numpy.int64).reshape(2, len(queue_ids))
        return LiveOffsets(starts, ends, unpacked(gaps))

    return Liveness(ask)
