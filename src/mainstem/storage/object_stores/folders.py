"""Pages of objects, from stores that have folders: in the order of their names, as flat stores list them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from mainstem.ports import ListedObject

PAGE_OBJECTS_MAX = 1000
"""As many as S3 gives at once."""

Entries = Callable[[str], list[tuple[str, ListedObject | None]]]
"""Folder, empty: the root, → the names in it, each with its object; None: a folder."""


def page_of(entries: Entries, prefix: str, after: str) -> list[ListedObject]:
    """The first objects below `prefix` that come after `after`."""
    return list(islice(_walk(entries, prefix, after), PAGE_OBJECTS_MAX))


def _walk(entries: Entries, folder: str, after: str) -> Iterator[ListedObject]:
    # A folder's objects begin with its name and a slash: that is how it is sorted among its neighbours.
    prefix = f"{folder}/" if folder else ""
    for name, found in sorted(entries(folder), key=lambda entry: entry[0] if entry[1] else f"{entry[0]}/"):
        if found is not None:
            if found.name > after:
                yield found
        elif not _passed(f"{prefix}{name}/", after):
            yield from _walk(entries, f"{prefix}{name}", after)


def _passed(folder: str, after: str) -> bool:
    """Whether all that can lie in a folder comes before `after`."""
    return folder < after and not after.startswith(folder)
