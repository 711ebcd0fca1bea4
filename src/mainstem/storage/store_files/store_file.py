"""A file of the queue store: batches sorted by (queue, offset), with an index of extents.

    run            level 0   one slice of the journal, of one retention class; it may count for several write groups;
                             in a shared store it has the batches of one
    packed file    level 1+  what runs of one write group had of the queues from `first_queue` to `last_queue`
    queue segment  level 2   one queue, from one offset on, as Kafka has it on its disk; in an object store joined with
                             its index to one file, where the cluster's feature level allows it

The name alone says which of them a file is, and where it lies below the root of the store (`path_of`). A name is never
given twice: what is written once more, after a crash or beside another task, has a name of its own.
"""

from __future__ import annotations

import enum

import msgspec

from mainstem.rpc.messages.split import FileDescription
from mainstem.storage.errors import StorageError

RUN_SUFFIX = ".run"
PACK_SUFFIX = ".pack"
SEGMENT_SUFFIX = ".log"
JOINED_SUFFIX = ".seg"
"""Of a queue segment that is one file, laid out as a packed file is."""
EXTENTS_SUFFIX = ".extents"
SEGMENT_SIBLINGS = (EXTENTS_SUFFIX, ".index", ".timeindex")
"""Suffixes, in place of `.log`, of the files beside a queue segment: Mainstem's index, and Kafka's two."""

RUNS_DIRECTORY = "runs"
PACKED_DIRECTORY = "packed"
QUEUES_DIRECTORY = "queues"

TEMPORARY_INFIX = ".tmp-"
"""Between the name of a file and something unique, while the file is being written."""

REMOTE_CLASS_SUFFIX = "+remote"
"""Retention classes end with this whose files move to the remote tier."""

COMPACTED_CLASS = "compact"
"""The retention class of runs whose queues are compacted…"""
INTERNAL_CLASS = "internal"
"""…and of those of internal topics, which are compacted, too, but lack no offset."""

MANY_GROUPS = -1
NO_OFFSET = -1
NEVER_COMPACTED = -1
NO_HORIZON = -1


def moves(retention_class: str) -> bool:
    """Whether merged files of a class move to the remote tier."""
    return retention_class.endswith(REMOTE_CLASS_SUFFIX)


class FileKind(enum.Enum):
    RUN = "run"
    PACKED = "packed file"
    SEGMENT = "queue segment"


class StoreFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the queue store, as whoever wrote it described it. Timestamps are the smallest and largest
    `max_timestamp` of its batches (ms; -1: there is none)."""

    name: str
    retention_class: str
    bytes: int
    """Size of the file, without what lies beside it."""
    batch_bytes: int
    batch_count: int
    record_count: int
    queue_count: int
    min_timestamp: int
    max_timestamp: int
    level: int = 0
    """How often its bytes were merged, about; 0: a run."""
    group: int = MANY_GROUPS
    """The only write group whose queues it has; `MANY_GROUPS`: it may have those of several, as runs do, and the next
    three fields say nothing."""
    first_queue: int = 0
    last_queue: int = 0
    first_offset: int = NO_OFFSET
    """The first offset of `first_queue` in it."""
    clean_ms: int = NEVER_COMPACTED
    """When the compaction began that wrote it, by the agreed time: all of its queues that could be compacted then are;
    `NEVER_COMPACTED`: none was, or not all of them."""
    horizon_ms: int = NO_HORIZON
    """When the first of its tombstones may go."""

    @property
    def is_merged(self) -> bool:
        """Whether it is a merge's output: of one write group, with known keys."""
        return self.group != MANY_GROUPS

    @property
    def may_move(self) -> bool:
        """Whether it was merged for the remote tier; whether it is uploaded goes by what its topics ask for now, too
        (`split/copying.py`). It may have queues besides whose topics never asked (`merge_outputs.cut`)."""
        return self.is_merged and moves(self.retention_class)

    @property
    def content(self) -> tuple[int, ...]:
        """The facts of a merged file's batches, which are those of its upload as well."""
        return (
            self.group, self.first_queue, self.last_queue, self.first_offset, self.queue_count, self.batch_count,
            self.record_count, self.batch_bytes, self.min_timestamp, self.max_timestamp,
        )  # fmt: skip

    @classmethod
    def of(cls, message: FileDescription) -> StoreFile:
        """The file that another process describes."""
        return cls(**msgspec.structs.asdict(message))

    def message(self) -> FileDescription:
        """The description for another process."""
        return FileDescription(**msgspec.structs.asdict(self))


assert StoreFile.__struct_fields__ == FileDescription.__struct_fields__


def kind_of(name: str) -> FileKind:
    """Raises `StorageError` for what cannot be a file's name."""
    directories, _, base = name.rpartition("/")
    if "\0" not in name and ".." not in name.split("/"):
        if name.endswith(RUN_SUFFIX) and not directories:
            return FileKind.RUN
        if name.endswith(PACK_SUFFIX) and not directories:
            return FileKind.PACKED
        stem, dot, suffix = base.rpartition(".")
        if dot + suffix in (SEGMENT_SUFFIX, JOINED_SUFFIX) and stem.isdecimal() and directories.count("/") == 2:
            return FileKind.SEGMENT
    raise StorageError(f"{name!r} cannot be the name of a file of the queue store")


def path_of(name: str) -> str:
    """The path of a file below the root of the store. Raises `StorageError` for what cannot be a file's name."""
    match kind_of(name):
        case FileKind.RUN:
            return f"{RUNS_DIRECTORY}/{name}"
        case FileKind.PACKED:
            return f"{PACKED_DIRECTORY}/{name}"
        case FileKind.SEGMENT:
            return f"{QUEUES_DIRECTORY}/{name}"


def has_index_beside(name: str) -> bool:
    """Whether a file's index lies beside it, as that of a queue segment does unless it is joined. Raises `StorageError`
    for what cannot be a file's name."""
    return kind_of(name) is FileKind.SEGMENT and name.endswith(SEGMENT_SUFFIX)


def is_joined(name: str) -> bool:
    """Whether a file is a queue segment of one file. Raises `StorageError` for what cannot be a file's name."""
    return kind_of(name) is FileKind.SEGMENT and not name.endswith(SEGMENT_SUFFIX)


def index_path_of(name: str) -> str:
    """The place of the rows of its index: in the file itself, at its end, or beside a queue segment."""
    path = path_of(name)
    return path.removesuffix(SEGMENT_SUFFIX) + EXTENTS_SUFFIX if has_index_beside(name) else path


def paths_of(name: str) -> list[str]:
    """All that belongs to a file: itself, and last what lies beside it."""
    path = path_of(name)
    if not has_index_beside(name):
        return [path]
    return [path, *(path.removesuffix(SEGMENT_SUFFIX) + suffix for suffix in SEGMENT_SIBLINGS)]


def owner_of(path: str) -> str | None:
    """The name of the file that a path below the root of the store belongs to: the file itself, what lies beside it, or
    what is being written for it. None for a path that no writer gives."""
    directory, _, rest = path.partition("/")
    name = rest.partition(TEMPORARY_INFIX)[0]
    if directory == QUEUES_DIRECTORY:
        for suffix in SEGMENT_SIBLINGS:
            if name.endswith(suffix):
                name = name.removesuffix(suffix) + SEGMENT_SUFFIX
    try:
        found = path_of(name)
    except StorageError:
        return None
    return name if found.partition("/")[0] == directory else None


def segment_name(topic: str, partition: int, unique: str, base_offset: int, *, joined: bool = False) -> str:
    """The name of a queue segment. `unique` is the merge's own, so that no two outputs ever have the same name, however
    often a topic's name is given again or a merge is played again. `joined`: it is one file."""
    return f"{topic}/{partition}/{unique}/{base_offset:020d}{JOINED_SUFFIX if joined else SEGMENT_SUFFIX}"


def segment_key(name: str) -> tuple[str, int, int]:
    """The topic and the partition of a queue segment, and the offset of its first record, as its name says."""
    topic, partition, _unique, base = name.split("/")
    return topic, int(partition), int(base.partition(".")[0])
