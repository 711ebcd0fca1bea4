"""Keeps what a write group's log has decided of its remote files. The manifest has the files that count.

A file of the tier goes this way; each step is a change in the log, numbered without gaps:

    intended   a leader is about to have it uploaded, under a name that was never given before
    counts     it is in the store; only the leader that intended it can say so, in the term in which it did
    leaving    it counts no more: its objects are to be deleted
    forgotten  `deleted`: nothing of it is left in the store

A file that was lost goes from counting to leaving as any other does; besides, it is noted as given up, for good.

An intended file whose leader lost its term can count no more, nor can one that its leader has given up (by `gone`). So
all orphans there can be are such names: nobody has to list the store to find them. A change that breaks a rule is
ignored, by all replicas alike, as the rules look at nothing but what the log has decided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.storage.errors import StorageError
from mainstem.storage.store_files.store_file import MANY_GROUPS, kind_of
from mainstem.storage.write_groups.control import RemoteChanged

RECORDED = "recorded"
REPLAYED = "replayed"


class RemotePosition(NamedTuple):
    """How far the remote tier of one write group is."""

    number: int
    """Of the last change; 0: there was none."""
    epoch: int
    """The term of the leader that made it."""
    upto: int
    """Every block up to here was considered."""


NOWHERE = RemotePosition(0, 0, 0)


GIVEN_UP = 0
"""No leader's term."""


class Noted(NamedTuple):
    """A file that does not count, and of which something may lie in the store."""

    epoch: int
    """The term of the leader that intended it, or let it go; `GIVEN_UP`: it was intended, and cannot count any more."""
    since_ms: int
    """When this replica applied that, by the agreed time."""


class Notes(NamedTuple):
    """How a change changes what is noted of files that do not count."""

    intended: Mapping[str, Noted]
    leaving: Mapping[str, Noted]
    forgotten: Sequence[str] = ()
    given_up: Sequence[GivenUpFile] = ()
    """Files that were lost: none of these notes ever goes."""


class RemoteState:
    """The state of one write group; only `apply` changes it."""

    __slots__ = ("given_up", "intended", "leaving", "position")

    def __init__(self, position: RemotePosition = NOWHERE, notes: Notes | None = None) -> None:
        self.position = position
        self.intended = dict(notes.intended) if notes is not None else {}
        self.leaving = dict(notes.leaving) if notes is not None else {}
        self.given_up = list(notes.given_up) if notes is not None else []

    def notes(self) -> Notes:
        """All that is noted."""
        return Notes(dict(self.intended), dict(self.leaving), given_up=tuple(self.given_up))

    def verdict(self, group: int, change: RemoteChanged, counts: Callable[[str], bool]) -> str:
        """Whether a change continues this: `RECORDED`, `REPLAYED` or `refused: …` with the reason. `counts` tells of
        a file's name whether it counts for the write group."""
        number, epoch, upto = self.position
        if change.number <= number:
            return REPLAYED
        if change.number > number + 1:
            return f"refused: change {change.number} of write group {group} does not follow change {number}"
        if change.epoch < epoch:
            return f"refused: the leader of term {change.epoch} was followed by that of term {epoch}"
        if change.upto < upto:
            return f"refused: blocks up to {upto} were considered, {change.upto} is less"
        fault = self._fault(group, change, counts)
        return f"refused: {fault}" if fault else RECORDED

    def _fault(self, group: int, change: RemoteChanged, counts: Callable[[str], bool]) -> str:
        for span in change.spans:
            if not 0 <= span.after < span.upto:
                return f"there are no blocks ({span.after}, {span.upto}]"
            for file in span.files:
                noted = self.intended.get(file.name)
                if noted is None or noted.epoch != change.epoch:
                    return f"{file.name} was not intended by the leader of term {change.epoch}"
                if file.group not in (group, MANY_GROUPS):
                    return f"{file.name} is of write group {file.group}, not {group}"
        names = [file.name for span in change.spans for file in span.files]
        names += [*change.intended, *change.gone, *change.deleted]
        if len(set(names)) < len(names):
            return "a file is named twice"
        for name in change.intended:
            known = self.intended.get(name)
            if counts(name) or name in self.leaving or (known is not None and known.epoch != change.epoch):
                return f"{name} is the name of another file"
            try:
                kind_of(name)
            except StorageError as error:
                return str(error)
        for name in change.deleted:
            if counts(name):
                return f"{name} counts"
        for one in change.given_up:
            if one.name not in change.gone:
                return f"{one.name} is given up, and would go on to count"
        return ""

    def apply(self, change: RemoteChanged, counted: Collection[str], now_ms: int) -> Notes:
        """Apply a change that was `RECORDED`, and return what it changed. `counted`: those of `gone` that counted."""
        self.position = RemotePosition(change.number, change.epoch, change.upto)
        noted = Noted(change.epoch, now_ms)
        given_up = {
            name: Noted(GIVEN_UP, self.intended[name].since_ms) for name in change.gone if name in self.intended
        }
        forgotten = [file.name for span in change.spans for file in span.files]
        forgotten += [name for name in change.deleted if name in self.intended or name in self.leaving]
        for name in forgotten:
            self.intended.pop(name, None)
            self.leaving.pop(name, None)
        notes = Notes(
            given_up | {name: noted for name in change.intended if name not in self.intended},
            dict.fromkeys(counted, noted),
            forgotten,
            [one for one in change.given_up if one.name in counted],
        )
        self.intended.update(notes.intended)
        self.leaving.update(notes.leaving)
        self.given_up += notes.given_up
        return notes
