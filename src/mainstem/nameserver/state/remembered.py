"""The state remembers for a while which requests were carried out, so that a repeated request changes
nothing.

A caller whose answer got lost asks the next leader with the same request id. Time is that of the log (`at_ms` of the
changes), so that all nodes remember and forget alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from mainstem.nameserver.state.commands import RememberChange

REMEMBERED_MS = 10 * 60 * 1000
"""Callers give up after seconds; after minutes none of their messages is still under way."""
REQUESTS_MAX = 20_000
"""Some tens of changes per second, for as long as `REMEMBERED_MS`."""


class RememberedChanges:
    def __init__(self) -> None:
        self._changes: dict[bytes, RememberChange] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._changes)

    def of(self, request: bytes) -> RememberChange | None:
        return self._changes.get(request) if request else None

    def add(self, change: RememberChange) -> None:
        self._changes[change.request] = change
        while self._changes:
            oldest = next(iter(self._changes.values()))
            if len(self._changes) <= REQUESTS_MAX and oldest.at_ms > change.at_ms - REMEMBERED_MS:
                return
            del self._changes[oldest.request]

    def commands(self) -> Iterator[RememberChange]:
        return iter(tuple(self._changes.values()))
