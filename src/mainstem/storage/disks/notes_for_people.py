"""Small files of what an operator decided or is to decide: JSON, so that people can read them, written whole under
another name, synced and renamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from mainstem.ports import Files
from mainstem.storage.errors import FormatError

TEMPORARY = ".tmp"

T = TypeVar("T")


async def read_notes(files: Files, name: str, kind: type[list[T]], remedy: str) -> list[T]:
    """The notes of a file; none if there is no such file. Raises `FormatError`, with the remedy, when it cannot be
    read, OSError."""
    try:
        file = await files.open(name)
    except FileNotFoundError:
        return []
    try:
        content = await file.read(0, await file.size())
    finally:
        await file.close()
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{name} cannot be read: {error}. {remedy}") from error


async def write_notes(files: Files, name: str, notes: Sequence[object]) -> None:
    """Replace the notes of a file; durable when it returns. Raises OSError."""
    file = await files.open(name + TEMPORARY, create=True)
    try:
        content = msgspec.json.format(msgspec.json.encode(notes), indent=1)
        await file.size(truncate_to=len(content))
        await file.write(0, [content], sync=True)
    finally:
        await file.close()
    await files.rename(name + TEMPORARY, name)
