"""A file with names and passwords for PLAIN, as the JAAS file of a Kafka broker has them: for clusters whose users are
kept outside the metadata.

One user per line, `name:password`; empty lines and those that begin with `#` are passed over. The file holds passwords
as they are, so that nobody but its owner may read it (mode 0600).
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from mainstem.errors import ConfigError

FILE_BYTES_MAX = 16 * 1024 * 1024


def read_users(path: Path) -> dict[str, bytes]:
    """Passwords by user. Raises ConfigError naming the line, never what it holds."""
    content = _read_secret("sasl.plain_users_file", path)
    users: dict[str, bytes] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        name, colon, password = line.partition(b":")
        try:
            user = name.decode()
        except UnicodeDecodeError:
            raise ConfigError(f"sasl.plain_users_file: {path}, line {number}: a name that is not UTF-8") from None
        if not user or not colon or not password:
            raise ConfigError(f"sasl.plain_users_file: {path}, line {number}: it takes name:password")
        if user in users:
            raise ConfigError(f"sasl.plain_users_file: {path}, line {number}: a user who stands above already")
        users[user] = password
    return users


def is_password(users: Mapping[str, bytes], user: str, password: bytes) -> bool:
    """Whether that is the user's password. Takes as long for a user that does not exist."""
    kept = users.get(user)
    right = hmac.compare_digest(
        hmac.digest(b"password", kept if kept is not None else b"", "sha256"),
        hmac.digest(b"password", password, "sha256"),
    )
    return right and kept is not None


def read_password(path: Path, key: str = "sasl.bootstrap_password_file") -> bytes:
    """The first line of a file that the configuration's `key` names. Raises ConfigError."""
    lines = _read_secret(key, path).splitlines()
    if not lines or not lines[0]:
        raise ConfigError(f"{key}: the first line of {path} is empty; it takes a password")
    return lines[0]


def _read_secret(key: str, path: Path) -> bytes:
    """The contents of a file that nobody but its owner may read."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(f"{key}: {path} has mode {mode:04o}, so that others may read it: chmod 600 it")
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {error.strerror or error}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{key}: {path} has more than {FILE_BYTES_MAX} bytes")
    return content
