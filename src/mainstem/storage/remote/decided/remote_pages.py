"""Carries what counts of a write group in the remote tier from one replica to another: in pages, of one moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from msgspec import structs

from mainstem.rpc.messages.snapshots import RANGES_PER_PART, DescribedRange, NotedName, RemoteStanding
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.storage.remote.decided.remote_state import Noted, Notes, RemotePosition
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.store_files.store_file import StoreFile


class RemotePage(NamedTuple):
    standing: RemoteStanding
    ranges: list[DescribedRange]

    @property
    def named(self) -> int:
        """How many files it names."""
        return len(self.ranges) + len(self.standing.names)  # not what is given up: earlier versions pass over that


@dataclass
class RemoteImage:
    """The files of a write group that count, as far as its pages have come."""

    position: RemotePosition
    files: list[tuple[int, int, StoreFile]] = field(default_factory=list)
    """(after, upto, file), in their order."""
    intended: dict[str, Noted] = field(default_factory=dict)
    leaving: dict[str, Noted] = field(default_factory=dict)
    given_up: list[GivenUpFile] = field(default_factory=list)

    @property
    def notes(self) -> Notes:
        return Notes(self.intended, self.leaving, given_up=self.given_up)

    @property
    def named(self) -> int:
        """How many files it names."""
        return len(self.files) + len(self.intended) + len(self.leaving)

    @classmethod
    def begun(cls, standing: RemoteStanding) -> RemoteImage:
        return cls(RemotePosition(standing.number, standing.epoch, standing.upto))

    def take(self, standing: RemoteStanding, ranges: Sequence[DescribedRange]) -> None:
        """Take the next page. Raises ValueError for one of another image."""
        position = RemotePosition(standing.number, standing.epoch, standing.upto)
        if position != self.position:
            raise ValueError(f"a page of the remote tier at {position} in one at {self.position}")
        self.files += [(entry.after, entry.upto, StoreFile.of(entry.file)) for entry in ranges]
        for entry in standing.names:
            names = self.leaving if entry.leaving else self.intended
            names[entry.name] = Noted(entry.epoch, entry.since_ms)
        self.given_up += standing.given_up


async def pages(remote: RemoteTier, group: int) -> AsyncIterator[RemotePage]:
    """Yield what counts, of a moment that is not before the call; nothing where the tier was never used. Raises
    `StorageError` while changes cannot be written here."""
    position, notes, spans = await remote.image(group)
    if not position.number:
        return
    standing = RemoteStanding(*position)
    yield RemotePage(standing, [])
    ranges = (DescribedRange(after, upto, file.message()) for after, upto, file in spans.described())
    while found := list(islice(ranges, RANGES_PER_PART)):
        yield RemotePage(standing, found)
    noted = (
        NotedName(one, *since, leaving)
        for names, leaving in ((notes.intended, False), (notes.leaving, True))
        for one, since in names.items()
    )
    while names := list(islice(noted, RANGES_PER_PART)):
        yield RemotePage(structs.replace(standing, names=names), [])
    for first in range(0, len(notes.given_up), RANGES_PER_PART):
        some = list(notes.given_up[first : first + RANGES_PER_PART])
        yield RemotePage(structs.replace(standing, given_up=some), [])
