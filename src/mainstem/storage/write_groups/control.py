"""Control commands: the entries of a write group's log besides records.

A control block's payload is a msgpack array of these. They are applied in log order, live and at recovery
alike, so each must mean the same whenever it is applied.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainstem.rpc.messages.split import FileDescription
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


Command = QueuesCreated | QueuesDeleted | LogStartMoved | SplitRecorded

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
