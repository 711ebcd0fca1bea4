"""The token of a node: a user who can read this file may change the node over HTTP.

It lies in write_dir, readable by the node's user alone, and is made with the first start. Commands on the same host
read it; the operator hands it on to other hosts. Delete it, and the next start makes another one.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from mainstem.console.errors import TokenUnusable

TOKEN_NAME = "http-token"
TOKEN_BYTES = 32
_TOKEN_CHARACTERS = 2 * TOKEN_BYTES
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def token_of(write_dir: Path) -> str:
    """The node's token; a new one is made if there is none, or it is torn, or other users could read it.
    Raises TokenUnusable."""
    path = write_dir / TOKEN_NAME
    try:
        found = _read(path)
        if found is None:
            path.unlink(missing_ok=True)
            found = secrets.token_hex(TOKEN_BYTES)
            _write(path, found)
    except OSError as error:
        raise TokenUnusable(f"{path}: {error.strerror}; the node needs to read and write it") from error
    return found


def read_token(write_dir: Path) -> str | None:
    """The token, for a command on the node's host; None: there is none that this user may read."""
    try:
        return _read(write_dir / TOKEN_NAME)
    except OSError:
        return None


def _read(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with open(descriptor, encoding="ascii", errors="replace") as file:
        if os.fstat(descriptor).st_mode & _OTHERS:
            return None  # others may have read it
        text = file.read(_TOKEN_CHARACTERS + 1).strip()
    return text if len(text) == _TOKEN_CHARACTERS else None


def _write(path: Path, token: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token + "\n")
        file.flush()
        os.fsync(descriptor)
