"""Tells splitters of earlier versions what they cannot do.

A splitter that runs on its own may be older than its node. It says with each question which files it knows. Work with
files that it does not know would fail at the first such name, again and again; so it is given other work, and where
there is none it is refused with the reason: always if it asks for all that there is, or else once in a lease, so that
it goes on with what it can do."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from mainstem.rpc.messages.split import EarlierSplitter, HeldLease
from mainstem.storage.store_files.store_file import StoreFile, is_joined

log = logging.getLogger(__name__)


def has_joined(files: Iterable[StoreFile]) -> bool:
    """Whether some of these files are queue segments of one object."""
    return any(is_joined(file.name) for file in files)


def without_joined(work: str, groups: Collection[int]) -> EarlierSplitter:
    """The refusal of `work` ('merge' or 'compact'), of which all that is left has such files, in these write groups."""
    some = ", ".join(map(str, sorted(groups)))
    return EarlierSplitter(
        f"this splitter is of an earlier version: what there is to {work} (write groups {some}) has queue segments of "
        "one object (.seg), which it can neither read nor write. It goes on splitting. Upgrade it to the version of "
        "its node, and start it again"
    )


class ToldSplitters:
    """Remembers which lease has heard of it."""

    def __init__(self) -> None:
        self._epoch = -1

    def tell(self, refusal: EarlierSplitter, held: HeldLease, where: str, *, drain: bool) -> None:
        """Raises the refusal, if whoever has the lease is to hear of it now."""
        if held.epoch != self._epoch:
            self._epoch = held.epoch
            log.warning("splitter at %s: %s", where, refusal)
        elif not drain:
            return
        raise refusal
