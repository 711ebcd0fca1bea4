"""Control commands: the entries of a write group's log besides records.

A control block's payload is a msgpack array of these. They are applied in log order, live and at recovery
alike, so each must mean the same whenever it is applied.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainstem.rpc.messages.split import FileDescription
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.storage.errors import FormatError


class QueuesCreated(msgspec.Struct, frozen=True, tag="created", array_like=True):
    """Partitions `first_partition` … + `count` - 1 of a topic exist from here on."""

    topic_number: int
    first_partition: int
    count: int


class QueuesDeleted(msgspec.Struct, frozen=True, tag="deleted", array_like=True):
    """All queues of a topic are gone; their batches are dead wherever they lie."""

    topic_number: int


class LogStartMoved(msgspec.Struct, frozen=True, tag="log_start", array_like=True):
    """Log starts moved up: (queue id, new log start) pairs."""

    starts: tuple[tuple[int, int], ...]


class SplitRecorded(msgspec.Struct, frozen=True, tag="split", array_like=True):
    """Blocks (after, upto] of this group are in these runs. Journals of version 0.1 have it; later versions record
    splits in each replica's own manifest."""

    after: int
    upto: int
    files: tuple[FileDescription, ...]


class RemoteSpan(msgspec.Struct, frozen=True, array_like=True):
    """Remote files with blocks (after, upto] of the write group."""

    after: int
    upto: int
    files: tuple[FileDescription, ...]


class RemoteChanged(msgspec.Struct, frozen=True, tag="remote", array_like=True):
    """Other files of the write group count in the remote tier from here on (`storage/remote/decided/remote_state.py`).
    Logs have it from `FeatureLevel.TIERED` on."""

    number: int
    """From 1 without gaps, per write group."""
    epoch: int
    """The term of the leader that appended it."""
    upto: int
    """Every block of the write group up to here was considered: what the tier takes of it is in the store."""
    spans: tuple[RemoteSpan, ...] = ()
    """Files that count from now on."""
    gone: tuple[str, ...] = ()
    """Files that count no more, or that were intended and are given up; their objects are to be deleted."""
    intended: tuple[str, ...] = ()
    """Files about to be uploaded: nobody's, unless a later change of the same epoch has them in `spans`."""
    deleted: tuple[str, ...] = ()
    """Files that were `gone` or `intended` and of which nothing is left in the store."""
    given_up: tuple[GivenUpFile, ...] = ()
    """Those of `gone` that were lost: readers pass over what they had. Programs that do not know this field let the
    files go all the same."""


class SlotFenced(msgspec.Struct, frozen=True, tag="fenced", array_like=True):
    """The queues of a slot take no more batches in this write group: they go on in another one, where their ends are
    now. Logs have it from `FeatureLevel.MOVABLE` on."""

    slot: int
    to: int
    number: int
    """How often the slot has moved then."""


class QueuesArrived(msgspec.Struct, frozen=True, tag="arrived", array_like=True):
    """Queues of a slot go on in this write group, with what the one before knew of them. A slot with many comes in
    several of these; the last one says so, and from there on the slot's queues take batches here. To repeat it changes
    nothing."""

    slot: int
    before: int
    """The write group that was fenced."""
    number: int
    """How often the slot has moved now."""
    ends: tuple[tuple[int, int], ...] = ()
    """(queue id, the offset from which on it is here) of queues that have records."""
    producers: bytes = b""
    """Rows of `kernel.ProducerStates.image`."""
    coordinators: tuple[tuple[int, int, int], ...] = ()
    """(queue id, producer id, epoch of the coordinator that wrote its last marker)."""
    last: bool = True
    behind: int = 0
    """The block of the write group before that has the fence. A replica of it applies that block first; 0: a node that
    has both write groups alone logged this. From `FeatureLevel.FOLLOWED` on."""
    needs: tuple[tuple[int, int, int, int], ...] = ()
    """The blocks of all write groups that the queues came through which a replica applies first (`arrival_log.Prior`).
    The leader that logged this has applied them. From `FeatureLevel.CHAINED` on."""


DONE = "done"
"""The outcome of a command that had its effect."""

Command = QueuesCreated | QueuesDeleted | LogStartMoved | SplitRecorded | RemoteChanged | SlotFenced | QueuesArrived

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Command, ...])


def encode(commands: Sequence[Command]) -> bytes:
    return _encoder.encode(commands)


def decode(payload: bytes, where: str) -> tuple[Command, ...]:
    """Raises `FormatError` naming `where` when the payload is not what `encode` makes."""
    try:
        return _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{where}: control block cannot be read: {error}") from error
