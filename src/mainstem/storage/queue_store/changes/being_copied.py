"""Write groups whose files are being copied to other nodes: nobody takes their files away meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class BeingCopied:
    """Counts the copies under way, per write group."""

    def __init__(self) -> None:
        self._kept: Counter[int] = Counter()

    @contextmanager
    def kept(self, group: int) -> Iterator[None]:
        """Keep the files of the write group inside the `with`: retention drops none, and inputs of merges and
        compactions linger."""
        self._kept[group] += 1
        try:
            yield
        finally:
            self._kept[group] -= 1
            if not self._kept[group]:
                del self._kept[group]

    def any_kept(self) -> bool:
        return bool(self._kept)

    def is_kept(self, group: int) -> bool:
        """Whether files of the write group are being copied."""
        return group in self._kept
