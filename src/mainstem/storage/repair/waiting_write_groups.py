"""Keeps the write groups that a start could not make whole from the journal waiting, while the others are served.

    unread    applied blocks of the write group lie in a hole: the state has them, the disk does not. The replica takes
              no part until `journal_damage` has made them whole in their place, from another replica or after an
              operator restored the file; then their segments get their indexes, and it takes part again, without a
              restart
    torn      the log ends before a hole. With other voters the replica has forgotten what it acknowledged, and comes
              back without a vote (`rejoining`). Without, it waits for the file to be restored, and for another start
    missing   applied blocks that are not split yet have gone with a segment. With other voters the run that they would
              have been split into counts as lost, and is made anew from theirs (`file_repair`). Without, it waits as a
              torn one

Invariants: a waiting write group acknowledges no batch and serves no read. Until a torn one has come back, no
checkpoint is saved and no segment indexed: so the next start, with the file restored, finds all of its log.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from mainstem.model import Sample
from mainstem.storage.errors import SegmentGone
from mainstem.storage.journal.encoding.format import sequence_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.stored_block import StoredPlace
from mainstem.storage.repair.journal_damage import JournalDamage

log = logging.getLogger(__name__)

REMEDY = "restore the file and start the node again, or have another node take the place of this one"
"""The remedy for a write group that no other node has."""


class WaitingWriteGroups:
    """The waiting write groups of one node: why each waits, and when it takes part again."""

    def __init__(
        self,
        groups: int,
        journal: Journal,
        damage: JournalDamage,
        silent: Mapping[int, object],
        resume: Callable[[int], Awaitable[None]],
    ) -> None:
        """`silent`: write groups in which this node stays silent until it has found a leader. `resume` is called to
        take part in a write group that waits no more."""
        self._count = groups
        self._journal = journal
        self._damage = damage
        self._silent = silent
        self._reasons: dict[int, str] = {}
        self._unread: dict[int, list[StoredPlace]] = {}
        """Unreadable blocks by write group; kept until the indexes of their segments are written."""
        self._torn: set[int] = set()
        """Write groups whose logs end before a hole, whether or not they wait here."""
        self._resume = resume

    def grow(self, groups: int) -> None:
        """From now on there are so many write groups."""
        self._count = groups

    def __contains__(self, group: object) -> bool:
        return group in self._reasons

    def reasons(self) -> dict[int, str]:
        """The waiting write groups, each with the reason, for operators."""
        return dict(sorted(self._reasons.items()))

    # --- a start --------------------------------------------------------------------------------------------

    def for_file(self, group: int, what: str, *, torn: bool) -> None:
        """Have a write group wait for a restored file: no other node has what it lacks."""
        self._reasons[group] = f"{what}; no other replica has it: {REMEDY}"
        if torn:
            self._torn.add(group)

    def for_answer(self, group: int, what: str) -> None:
        """Have a write group wait for another start: whether a block of it is given up only other nodes can tell."""
        self._reasons.setdefault(group, what)

    def for_leader(self, group: int) -> None:
        """Have a torn write group come back through a leader."""
        self._torn.add(group)

    def for_blocks(self, places: Sequence[StoredPlace]) -> None:
        """Have the write groups of these applied blocks wait: the blocks cannot be read."""
        for place in places:
            self._unread.setdefault(place.group, []).append(place)
        for group, of_group in self._unread.items():
            if group not in self._reasons:
                self._reasons[group] = (
                    f"{of_group[0]} and {len(of_group) - 1} more cannot be read; they are asked for from other "
                    "replicas. Where there is none, restore the file"
                )

    def tell(self) -> None:
        for group, reason in self.reasons().items():
            log.error("write group %d waits and is not served by this node, all others are: %s", group, reason)

    # --- while the node runs --------------------------------------------------------------------------------

    @property
    def holds_checkpoints(self) -> bool:
        """Whether a start with the file restored may find more of a log than this start did."""
        return any(group in self._reasons or group in self._silent for group in self._torn)

    def unread_in(self, sequence: int) -> list[StoredPlace]:
        """The blocks of a segment that memory has not indexed, damaged or made whole by now."""
        places = (place for of_group in self._unread.values() for place in of_group)
        return [place for place in places if sequence_of(place.position) == sequence]

    def is_damaged(self, places: Iterable[StoredPlace]) -> bool:
        return any(self._damage.waits_for(place.group, place.index) for place in places)

    async def round(self) -> None:
        """Let the write groups take part whose blocks are whole and indexed."""
        for group, places in list(self._unread.items()):
            if self.is_damaged(places) or not all(map(self._is_indexed, places)):
                continue
            del self._unread[group]
            if group in self._torn:
                continue
            del self._reasons[group]
            log.warning("write group %d: its blocks can be read again, it goes on", group)
            await self._resume(group)

    def _is_indexed(self, place: StoredPlace) -> bool:
        try:
            return self._journal.segment(sequence_of(place.position)).index_ready
        except SegmentGone:
            return True

    def samples(self) -> Iterable[Sample]:
        for group in range(self._count):
            yield Sample(
                "mainstem_write_group_waits", "gauge",
                "1 while this node has no part in a write group because blocks of it cannot be read", group in self,
                (("group", str(group)),),
            )  # fmt: skip
