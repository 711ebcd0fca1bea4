"""A node that counts the bytes which come to it by RPC: `python -m bench.nodes.counted_node FILE serve …`.

All else is the node of `mainstem serve`, with the arguments behind FILE. The file holds two numbers of 8 bytes,
little-endian, which follow every read of a socket: the bytes that came over connections that others made to this node
(Raft's messages, above all blocks of the logs), and those that came over connections that it made itself (answers to
what it asked others for: snapshots, files, the metadata).
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path
from typing import NamedTuple

from mainstem.cli.main import main as command_line
from mainstem.rpc.rpc_server import ServerConnection
from mainstem.rpc.wire.client_connection import ClientConnection

_NUMBERS = struct.Struct("<QQ")


class ReceivedBytes(NamedTuple):
    """By RPC, hellos and heads of frames included."""

    told: int
    """By nodes that called this one."""
    asked: int
    """As answers to calls of its own."""

    @property
    def all(self) -> int:
        return self.told + self.asked


def received(file: Path) -> ReceivedBytes:
    """Read what a node has counted so far."""
    return ReceivedBytes(*_NUMBERS.unpack(file.read_bytes()))


def count_into(file: Path) -> None:
    """Have all connections of this process that are made from now on be counted there."""
    file.write_bytes(bytes(_NUMBERS.size))
    with file.open("r+b") as opened:
        numbers = mmap.mmap(opened.fileno(), _NUMBERS.size)
    for at, connection in enumerate((ServerConnection, ClientConnection)):
        _count(connection, numbers, at)


def _count(connection: type[ServerConnection] | type[ClientConnection], numbers: mmap.mmap, at: int) -> None:
    taken = connection.buffer_updated
    counted = [0] * len(ReceivedBytes._fields)

    def buffer_updated(self: ServerConnection | ClientConnection, nbytes: int) -> None:
        counted[at] += nbytes
        struct.pack_into("<Q", numbers, 8 * at, counted[at])
        taken(self, nbytes)  # type: ignore[arg-type]  # it is of the class that it was taken from

    connection.buffer_updated = buffer_updated  # type: ignore[method-assign]  # it stands for the same method


def main() -> None:
    count_into(Path(sys.argv[1]))
    command_line(sys.argv[2:])


if __name__ == "__main__":
    main()
