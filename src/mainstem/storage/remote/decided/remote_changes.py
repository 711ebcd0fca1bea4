"""Changes of the remote tier as the log takes them: commands that fit into any block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from mainstem.rpc.messages.split import FileDescription
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.storage.remote.decided.remote_state import RemotePosition
from mainstem.storage.write_groups.control import RemoteChanged, RemoteSpan

COMMAND_BYTES_MAX = 8 << 10
"""Of what a command names, about: it fits into the smallest segment there can be."""

AT_ONCE_BYTES_MAX = 1 << 20
"""Of what a command names that is to count as a whole, about: 3,000 files. It has to fit into a block, too."""

NAME_BYTES = 8
"""The memory that a name, or a file, takes besides itself."""

_encoder = msgspec.msgpack.Encoder()


class WantedChange(NamedTuple):
    """The changes that a leader wants."""

    upto: int
    """As far as all blocks were considered when this is recorded; never less than before."""
    spans: Sequence[RemoteSpan] = ()
    gone: Sequence[str] = ()
    intended: Sequence[str] = ()
    deleted: Sequence[str] = ()
    given_up: Sequence[GivenUpFile] = ()
    """They go, too."""

    def whole(self, position: RemotePosition, epoch: int) -> RemoteChanged:
        """All of it as one change behind `position`, however large."""
        upto = max(self.upto, position.upto)
        gone = (*self.gone, *(one.name for one in self.given_up))
        names = gone, tuple(self.intended), tuple(self.deleted)
        return RemoteChanged(position.number + 1, epoch, upto, tuple(self.spans), *names, tuple(self.given_up))


class Replacement(NamedTuple):
    """Files that come to count in the place of others."""

    spans: Sequence[RemoteSpan]
    gone: Sequence[str]

    @property
    def bytes(self) -> int:
        """Of what a command with it names, about."""
        return sum(map(bytes_of_file, chain.from_iterable(span.files for span in self.spans))) + sum(
            map(bytes_of_name, self.gone)
        )


def portions(replacements: Iterable[Replacement], bytes_max: int) -> Iterator[Replacement]:
    """The same in their order, joined into as few as name so many bytes at most each, unless one alone names more."""
    joined: list[Replacement] = []
    size = 0
    for one in replacements:
        more = one.bytes
        if joined and size + more > bytes_max:
            yield _joined(joined)
            joined, size = [], 0
        joined.append(one)
        size += more
    if joined:
        yield _joined(joined)


def _joined(replacements: Sequence[Replacement]) -> Replacement:
    spans: dict[tuple[int, int], list[FileDescription]] = {}
    for span in chain.from_iterable(one.spans for one in replacements):
        spans.setdefault((span.after, span.upto), []).extend(span.files)
    return Replacement(
        [RemoteSpan(*blocks, tuple(files)) for blocks, files in spans.items()],
        [name for one in replacements for name in one.gone],
    )


def bytes_of_name(name: str) -> int:
    """Of a command, about, that a name takes."""
    return len(name) + NAME_BYTES


def bytes_of_file(file: FileDescription) -> int:
    """The same of a file that comes to count."""
    return len(_encoder.encode(file)) + NAME_BYTES


class _Part:
    """The changes that go into one command."""

    def __init__(self) -> None:
        self.bytes = 0
        self.intended: list[str] = []
        self.spans: dict[tuple[int, int], list[FileDescription]] = {}
        self.gone: list[str] = []
        self.deleted: list[str] = []
        self.given_up: list[GivenUpFile] = []

    def change(self, number: int, epoch: int, upto: int) -> RemoteChanged:
        spans = tuple(RemoteSpan(*blocks, tuple(files)) for blocks, files in self.spans.items())
        names = tuple(self.gone), tuple(self.intended), tuple(self.deleted)
        return RemoteChanged(number, epoch, upto, spans, *names, tuple(self.given_up))


class _Parts(list[_Part]):
    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self._bytes_max = bytes_max

    def with_room(self, size: int) -> _Part:
        """The part that takes the next `size` bytes."""
        if not self or self[-1].bytes + size > self._bytes_max:
            self.append(_Part())
        self[-1].bytes += size
        return self[-1]

    def for_name(self, name: str) -> _Part:
        return self.with_room(bytes_of_name(name))


def commands(
    wanted: WantedChange, position: RemotePosition, epoch: int, bytes_max: int = COMMAND_BYTES_MAX
) -> list[RemoteChanged]:
    """The commands, behind `position`, that make all the changes that are wanted: first what is intended, then files
    that count, then those that go, so that no batch is ever without a file. `upto` moves with the last file that comes
    to count. None, where nothing would change. Each names about `bytes_max` at most."""
    parts = _Parts(bytes_max)
    for name in wanted.intended:
        parts.for_name(name).intended.append(name)
    for span in wanted.spans:
        for file in span.files:
            part = parts.with_room(bytes_of_file(file))
            part.spans.setdefault((span.after, span.upto), []).append(file)
    last = max(len(parts) - 1, 0) if any(part.spans for part in parts) else 0
    for name in wanted.gone:
        parts.for_name(name).gone.append(name)
    for name in wanted.deleted:
        parts.for_name(name).deleted.append(name)
    for one in wanted.given_up:
        part = parts.with_room(len(_encoder.encode(one)) + len(one.name) + 2 * NAME_BYTES)
        part.gone.append(one.name)
        part.given_up.append(one)
    upto = max(wanted.upto, position.upto)
    if not parts and upto > position.upto:
        parts.append(_Part())
    return [
        part.change(position.number + 1 + at, epoch, upto if at >= last else position.upto)
        for at, part in enumerate(parts)
    ]
