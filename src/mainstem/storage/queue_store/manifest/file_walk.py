"""The walk over all files of all write groups, those of each oldest first, while the manifest changes."""

from __future__ import annotations

from collections.abc import Iterator

from mainstem.storage.queue_store.manifest.in_memory.span_lists import ListedSpan, SpanList
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.manifest.mirror import Mirror


def walk(mirror: Mirror) -> Iterator[tuple[str, list[int]]]:
    """Yield (file, write groups it counts for), as `Manifest.in_order` says."""
    walks = {group: _Walk(mirror, group) for group in mirror.groups()}
    while heads := [one for one in walks.values() if one.look()]:
        # files of several write groups were recorded in an order that suits all of them
        first = heads[0]
        if len(heads) > 1:
            first = min(heads, key=lambda one: (mirror.is_shared(one.head.name), one.head.sequence))
        name = first.head.name
        others = mirror.counts_for(name) - {first.group}
        together = [first, *(walks[group] for group in sorted(others) if group in walks and walks[group].has(name))]
        yield name, [one.group for one in together]
        for one in together:  # of a span that is replaced meanwhile, all of its successor comes
            one.passed.add(name)


class _Walk:
    """How far the files of one write group have come."""

    def __init__(self, mirror: Mirror, group: int) -> None:
        self._mirror = mirror
        self.group = group
        self.passed: set[str] = set()
        """The files of the present span that have come."""
        self._done_upto = -1
        self._spans: SpanList | None = None
        self._span: ListedSpan | None = None
        self._rest: Iterator[FileRange] = iter(())
        self._head: FileRange | None = None

    @property
    def head(self) -> FileRange:
        """The next file, after a look that found one."""
        assert self._head is not None
        return self._head

    def look(self) -> bool:
        """Find the next file, by what the manifest says now. False at the end."""
        self._follow()
        while self._span is not None:
            while self._head is not None and self._head.name in self.passed:
                self._head = next(self._rest, None)
            if self._head is not None:
                return True
            self._done_upto = self._span.upto
            self._spans = None
            self._follow()
        return False

    def has(self, name: str) -> bool:
        """Whether a file is still to come of the present span."""
        return self._span is not None and name not in self.passed and any(entry.name == name for entry in self._span)

    def _follow(self) -> None:
        spans = self._mirror.spans(self.group)
        if spans is self._spans:
            return
        self._spans = spans
        place = spans.behind(self._done_upto)
        span = spans[place] if place < len(spans) else None
        if span is None or self._span is None or (span.after, span.upto) != (self._span.after, self._span.upto):
            self.passed = set()  # else others of its files went, or came: what has come is not to come again
        self._span = span
        self._rest = iter(span) if span is not None else iter(())
        self._head = next(self._rest, None)
