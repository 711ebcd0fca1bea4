"""Snapshots of write groups: offered by a leader, fetched by the member that is too far behind.

The member fetches the files of the write group until it has them all, and the state last, so that as little as
possible is left to send as log. Raw bytes travel as attachment, with a CRC32C of their own.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.rpc.errors import Refused
from mainstem.rpc.messages.split import FileDescription
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.rpc.wire.method import Method, Nothing

RANGES_PER_PART = 1_000

BYTE_RANGES_MAX = 5_000
"""Ranges of a file asked for in one call: some 100 KB."""

NAME_LENGTH_MAX = 512
"""Of a file: a queue segment's begins with a topic's name of up to 249 characters."""

WriteGroupNumber = Annotated[int, msgspec.Meta(ge=0, lt=0xFFFF)]
Index = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
NodeIds = Annotated[list[Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]], msgspec.Meta(max_length=1_000)]
Checksum = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]

RUNS = "runs"
TOPICS = "topics"
"""Rows of three i64: topic number, first partition, count."""
QUEUES = "queues"
"""Rows of three i64: queue id, high watermark, log start."""
PRODUCERS = "producers"
"""Rows as the kernel's `ProducerStates.image` has them."""
TRANSACTIONS = "transactions"
"""Rows of seven i64, as `WriteGroupTransactions.image` has them; sent where there ever was a transaction."""
REMOTE = "remote"
"""Files that count in the remote tier, and names of files that do not count and may lie there; sent where the tier was
ever used."""
MOVES = "moves"
"""Pieces of what the write group's log says of slots that moved, encoded as `storage.state.slot_moves.MovesTold`; sent
where any ever did."""
END = "end"


class WriteGroupSnapshotRefused(Refused):
    """There is no snapshot, or the member does not take it; the message says why. The caller may try
    again."""

    kind = "group snapshot refused"


class OfferWriteGroupSnapshot(msgspec.Struct, frozen=True):
    """The leader of `term` asks a member to fetch its snapshot of a write group, at block `index` or a later
    one. The member answers when it has installed it."""

    group: WriteGroupNumber
    term: Index
    index: Index


class FetchWriteGroupSnapshot(msgspec.Struct, frozen=True):
    """Asks for the name and files of the newest snapshot and, if wanted, the state."""

    group: WriteGroupNumber
    with_state: bool


class DescribedRange(msgspec.Struct, frozen=True, array_like=True):
    """A file with blocks (after, upto] of the write group."""

    after: Index
    upto: Index
    file: FileDescription


class NotedName(msgspec.Struct, frozen=True, array_like=True):
    """A file that does not count, and of which something may lie in the object store."""

    name: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)]
    epoch: Index
    since_ms: int
    leaving: bool
    """It counted before; otherwise a leader was about to upload it."""


class RemoteStanding(msgspec.Struct, frozen=True):
    """How far the remote tier of the write group is, and some of the names."""

    number: Index
    epoch: Index
    upto: Index
    names: Annotated[list[NotedName], msgspec.Meta(max_length=RANGES_PER_PART)] = []
    given_up: Annotated[list[GivenUpFile], msgspec.Meta(max_length=RANGES_PER_PART)] = []


class WriteGroupSnapshotPart(msgspec.Struct, frozen=True):
    """One part of a snapshot; each part names the snapshot."""

    index: Index
    term: Index
    voters: NodeIds
    learners: NodeIds
    holds: str
    crc: Checksum = 0
    """Of the attachment."""
    ranges: Annotated[list[DescribedRange], msgspec.Meta(max_length=RANGES_PER_PART)] = []
    totals: dict[str, int] = {}
    """In the last part: how many ranges there were, and how many bytes of each other kind."""
    remote: RemoteStanding | None = None
    """In parts that hold `REMOTE`; `ranges` has remote files there."""


class FetchFile(msgspec.Struct, frozen=True):
    """Asks for the bytes of a file of the queue store, or of one that lies beside a queue segment: all of them, or
    those of some ranges of the former, which rise. A node of an earlier version gives all in any case."""

    name: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)]
    ranges: Annotated[list[tuple[Index, Index]], msgspec.Meta(max_length=BYTE_RANGES_MAX)] = []
    """(position, length); none: the whole file."""


class FilePart(msgspec.Struct, frozen=True):
    crc: Checksum
    of_ranges: bool = False
    """Whether the attachment has bytes of the ranges that were asked for, one behind the other."""


class FetchRemoteFiles(msgspec.Struct, frozen=True):
    """Asks for what counts of a write group in the remote tier, with change `number` or a later one."""

    group: WriteGroupNumber
    number: Index


class RemoteFilesPart(msgspec.Struct, frozen=True):
    """Some of what counts; without `remote` the end."""

    remote: RemoteStanding | None = None
    ranges: Annotated[list[DescribedRange], msgspec.Meta(max_length=RANGES_PER_PART)] = []
    total: int = 0
    """In the last part: how many files were named in all."""


OFFER_WRITE_GROUP_SNAPSHOT = Method(
    98, "groups.offer_snapshot", OfferWriteGroupSnapshot, Nothing, (WriteGroupSnapshotRefused,), nodes_only=True
)
FETCH_WRITE_GROUP_SNAPSHOT = Method(
    99, "groups.fetch_snapshot", FetchWriteGroupSnapshot, WriteGroupSnapshotPart, (WriteGroupSnapshotRefused,),
    streams=True, nodes_only=True,
)  # fmt: skip
FETCH_FILE = Method(
    100, "groups.fetch_run", FetchFile, FilePart, (WriteGroupSnapshotRefused,), streams=True, nodes_only=True
)
"""Its name on the wire is that of version 0.1."""
FETCH_REMOTE_FILES = Method(
    103, "groups.fetch_remote_files", FetchRemoteFiles, RemoteFilesPart, (WriteGroupSnapshotRefused,), streams=True,
    nodes_only=True,
)  # fmt: skip
