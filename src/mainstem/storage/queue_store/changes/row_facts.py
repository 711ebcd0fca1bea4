"""Facts remembered of files, by their rows in the file table: a few bytes for each, within a bound.

Facts lie in pages, as rows do, and a page is made when something is noted in it. Beyond the bound nothing more is
noted: whoever asks about all files in their order finds most facts then, where letting go of the oldest would leave
none. A row is never given to another file, so what is noted of one stays true of it.
"""

from __future__ import annotations

from collections.abc import Container

import numpy
import numpy.typing

Page = numpy.typing.NDArray[numpy.void]
Places = numpy.typing.NDArray[numpy.intp]


class RowFacts:
    """Facts of one kind; all zeros: nothing is known."""

    def __init__(self, kind: numpy.dtype[numpy.void], page_files: int, bytes_max: int) -> None:
        self._kind = kind
        self._page_files = page_files
        self._pages_max = max(1, bytes_max // (kind.itemsize * page_files))
        self._pages: dict[int, Page] = {}
        self._changed: dict[int, int] = {}
        self._changes = 0

    @property
    def held_bytes(self) -> int:
        return len(self._pages) * self._page_files * self._kind.itemsize

    def page(self, number: int) -> Page | None:
        """The facts of all rows of a page, to be read; None: nothing is known of them."""
        return self._pages.get(number)

    def get(self, row: int) -> tuple[int, ...] | None:
        """The facts of a row; None: nothing is known."""
        page = self._pages.get(row // self._page_files)
        if page is None:
            return None
        found: tuple[int, ...] = page[row % self._page_files].item()
        return found if any(found) else None

    def changed(self, number: int) -> int:
        """Another number for each time that something was noted in a page."""
        return self._changed.get(number, 0)

    def has_room(self, number: int) -> bool:
        """Whether something can be noted in a page."""
        return number in self._pages or len(self._pages) < self._pages_max

    def note(self, number: int, places: Places, facts: tuple[object, ...]) -> None:
        """Note facts (values or columns) of some rows of a page, if there is room."""
        if not self.has_room(number):
            return
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = numpy.zeros(self._page_files, self._kind)
        for field, values in zip(self._kind.names or (), facts, strict=True):
            page[field][places] = values
        self._changes += 1
        self._changed[number] = self._changes

    def put(self, row: int, facts: tuple[int, ...]) -> None:
        """Note the facts of a row, if there is room."""
        number, at = divmod(row, self._page_files)
        self.note(number, numpy.array([at]), facts)

    def keep(self, numbers: Container[int]) -> None:
        """Forget all other pages."""
        for number in [number for number in self._pages if number not in numbers]:
            del self._pages[number]
            self._changed.pop(number, None)

    def clear(self) -> None:
        self._pages.clear()
        self._changed.clear()
