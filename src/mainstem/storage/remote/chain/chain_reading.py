"""Reads from the store alone what counts in the remote tier: the newest image, and the changes behind it, as far as
they are there. For a second cluster, and for one that has lost its own rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mainstem.model import Buffer
from mainstem.ports import ListedObject, ObjectRange, ObjectStore
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.object_stores.errors import ObjectAbsent
from mainstem.storage.remote.chain.chain_format import decode_change, decode_head, decode_image
from mainstem.storage.remote.decided.remote_state import RECORDED, Noted, Notes, RemotePosition, RemoteState
from mainstem.storage.store_files.object_names import change_object, group_folder, head_object, image_object
from mainstem.storage.store_files.store_file import StoreFile

ATTEMPTS = 5
"""An image may be deleted while it is looked for, by a leader that has written two later ones."""


class StoredTier(NamedTuple):
    """The content of the store about one write group."""

    position: RemotePosition
    files: tuple[tuple[int, int, StoreFile], ...]
    """(after, upto, file), by their blocks."""
    notes: Notes
    """Names that do not count; when they were noted is not known."""


async def read_chain(store: ObjectStore, group: int) -> StoredTier | None:
    """The files of a write group that count; None: the store has no chain of it. Raises `FormatError` naming the object
    that is damaged, and `StorageError`."""
    for _ in range(ATTEMPTS):
        number = await _newest_image(store, group)
        try:
            return await _read_from(store, group, number)
        except ObjectAbsent:
            continue
    raise StorageError(f"{group_folder(group)}: no image of the remote tier stays long enough to be read; try again")


async def _newest_image(store: ObjectStore, group: int) -> int:
    """The number of the newest image; 0: there is none that is known."""
    try:
        head = decode_head(await whole_object(store, head_object(group)), head_object(group), group).image
    except (ObjectAbsent, FormatError):
        head = 0
    return max([head, *await listed_images(store, group)])  # lists may lack one, and the head may be older


async def listed_images(store: ObjectStore, group: int) -> list[int]:
    """The numbers of the images that the store lists, ascending. Raises `StorageError`."""
    numbers, folder = list[int](), f"{group_folder(group)}/images"
    page = await store.page_for_upkeep(folder)
    while page:
        numbers += (number_of(entry) for entry in page)
        page = await store.page_for_upkeep(folder, page[-1].name)
    return numbers


async def first_listed_change(store: ObjectStore, group: int) -> int | None:
    """The number of the first change that the store lists; None: it lists none. Raises `StorageError`."""
    page = await store.page_for_upkeep(f"{group_folder(group)}/chain")
    return number_of(page[0]) if page else None


def number_of(entry: ListedObject) -> int:
    return int(entry.name.rpartition("/")[2])


async def _read_from(store: ObjectStore, group: int, image: int) -> StoredTier | None:
    state, files = RemoteState(), dict[str, tuple[int, int, StoreFile]]()
    if image:
        name = image_object(group, image)
        start, there = decode_image(await whole_object(store, name), name, group)
        files = {file.name: (after, upto, file) for after, upto, file in there}
        notes = Notes(_noted(start.intended), _noted(start.leaving), given_up=start.given_up)
        state = RemoteState(RemotePosition(start.number, start.epoch, start.upto), notes)
    while True:
        name = change_object(group, state.position.number + 1)
        try:
            content = await whole_object(store, name)
        except ObjectAbsent:
            break
        change = decode_change(content, name, group, state.position.number + 1)
        verdict = state.verdict(group, change, files.__contains__)
        if verdict != RECORDED:
            raise FormatError(f"{name}: {verdict}")
        gone = [one for one in change.gone if files.pop(one, None) is not None]
        state.apply(change, gone, 0)
        files |= {
            file.name: (span.after, span.upto, StoreFile.of(file)) for span in change.spans for file in span.files
        }
    if not state.position.number:
        return None
    return StoredTier(state.position, tuple(_in_order(files)), state.notes())


def _noted(names: Mapping[str, int]) -> dict[str, Noted]:
    return {name: Noted(epoch, 0) for name, epoch in names.items()}


def _in_order(files: dict[str, tuple[int, int, StoreFile]]) -> Iterator[tuple[int, int, StoreFile]]:
    yield from sorted(
        files.values(),
        key=lambda entry: (entry[1], entry[0], entry[2].first_queue, entry[2].first_offset, entry[2].name),
    )


async def whole_object(store: ObjectStore, name: str) -> Buffer:
    """All bytes of a small object. Raises `ObjectAbsent`, and `StorageError`."""
    size = (await store.info(name)).size_bytes
    (content,) = await store.read(name, [ObjectRange(0, size)])
    return content
