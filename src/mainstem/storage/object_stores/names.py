"""Names of objects: what every kind of store takes alike."""

from __future__ import annotations

import re

NAME_BYTES_MAX = 900
"""S3 takes 1,024 bytes, the prefix included."""
UNFINISHED = ".unfinished-"
"""Stores that are file systems write under a name that begins so, and rename: no reader sees half an object."""

_PART = r"[A-Za-z0-9_=+-][A-Za-z0-9._=+-]{0,199}"
"""File systems take 255 bytes. None begins with a dot: such names are the stores' own."""

_NAME = re.compile(rf"{_PART}(?:/{_PART})*")


def checked_folder(folder: str) -> str:
    """The folder, if every kind of store can have it; empty: the whole store. Raises ValueError."""
    return checked(folder) if folder else folder


def checked(name: str) -> str:
    """The name, if every kind of store can have it. Raises ValueError: names come from the program, not from users."""
    if len(name) > NAME_BYTES_MAX or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of an object")
    return name
