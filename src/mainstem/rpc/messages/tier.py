"""The messages of uploads to the remote tier: a splitter that has nothing to split and nothing to merge asks its node
which files to upload, and says which of them lie in the object store.

Files are given as those of a merge are (`messages/merge.py`): held from the answer on, for as long as the lease is in
force under which it was asked for, or until they are handed in. A damaged one is reported as that of a merge, by the id
of the work. The node has said in the write group's log that objects of these names are to come before it gives them
out; what is not handed in it deletes.

If the object store is the cluster's queue store, no work is given out here: tasks of splits, merges and compactions
write the objects themselves. Each has the node say in the log which names are to come, before the first byte of them.
"""

from __future__ import annotations

import msgspec

from mainstem.rpc.messages.split import FileDescription, HeldLease, LeaseLost
from mainstem.rpc.wire.method import Method, Nothing


class MovingFile(msgspec.Struct, frozen=True):
    """A file of the queue store, and where it is to go."""

    file: FileDescription
    name: str
    """The file's in the remote tier. It may be that of a queue segment of one object, where the file is of several."""
    objects: tuple[str, ...]
    """The names of the file and of what lies beside it, in the object store."""


class AskTier(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for work. Work that was given before under this lease and is not handed in yet is taken back."""

    lease: HeldLease
    drain: bool = False
    """Also soon after a failure."""
    joins: bool = False
    """The caller can upload a queue segment as one object."""


class TierWork(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one write group, to be uploaded."""

    tier_id: str = ""
    """Empty: there is nothing to upload now."""
    group: int = -1
    files: tuple[MovingFile, ...] = ()
    store: str = ""
    """The URL of the object store."""
    store_config: bytes = b""
    """An `ObjectStoreConfig`, in JSON."""
    failure: str = ""
    """Why nothing can be given out; empty: nothing waits, or the node rests after a failure."""


class RecordTier(msgspec.Struct, frozen=True, kw_only=True):
    """Hands in what was uploaded."""

    lease: HeldLease
    tier_id: str
    names: tuple[str, ...]
    """Of the files given, by their names in the remote tier, those that lie in the store as a whole."""
    failure: str = ""
    """Why the others do not; empty: nothing failed."""


class TierReply(msgspec.Struct, frozen=True):
    outcome: str
    """'recorded': the files count in the remote tier; 'kept': they will, with others of the same blocks that are to be
    uploaded; or 'refused: …'. The same when asked again."""


class IntendFiles(msgspec.Struct, frozen=True):
    """Asks to have the log of a write group say that objects of these files are about to come. No name is ever given
    twice."""

    group: int
    names: tuple[str, ...]


class IntendReply(msgspec.Struct, frozen=True):
    refusal: str = ""
    """Why the names may not be written, as where the node does not lead the write group; empty: the log says them,
    durably."""


class StoreAccess(msgspec.Struct, frozen=True):
    """How the shared store is reached. Options of an object store may be secrets: no other port tells them."""

    config: bytes
    """An `ObjectStoreConfig`, in JSON."""


TIER_WORK = Method(34, "tier.work", AskTier, TierWork, (LeaseLost,))
RECORD_TIER = Method(35, "tier.record", RecordTier, TierReply, (LeaseLost,))
INTEND_FILES = Method(36, "tier.intend", IntendFiles, IntendReply)
STORE_ACCESS = Method(37, "tier.access", Nothing, StoreAccess)


class GivenUpFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that counted, was lost, and was given up by an operator. It stays in the list of these for good."""

    name: str
    after: int
    upto: int
    """Its records were in blocks (after, upto] of the write group."""
    record_count: int
    batch_bytes: int
    first_queue: int
    last_queue: int
    """Its records were of these queues, or of some between them."""
    at_ms: int
    by: str
    """The operator, as they called themselves."""
    fault: str
    """The finding when it was given up."""
