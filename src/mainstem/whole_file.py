"""Files that are written whole or not at all, readable by those that they are for from their first byte on.

A file gets its content under another name in the same directory and then takes its own: whoever opens it, or starts
again after a crash, finds the old content or the new one.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: bytes, mode: int) -> None:
    """Write a file of this mode in one step that a crash does not cut in two. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # whatever the umask is
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
