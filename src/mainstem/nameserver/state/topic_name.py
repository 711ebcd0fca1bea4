"""Checks that topic names are legal, and that no two could be mistaken for each other.

Kafka's rules: 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-', but neither '.' nor '..'. Metric
systems turn '.' into '_', so two topics may not differ in these alone.
"""

from __future__ import annotations

import re

from mainstem.nameserver.errors import InvalidTopicName

NAME_LENGTH_MAX = 249  # with "-<partition>" added it still fits a file name of 255 bytes
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise `InvalidTopicName` unless the name is legal."""
    if not name:
        raise InvalidTopicName("the topic name is empty")
    if name in (".", ".."):
        raise InvalidTopicName(f"the topic name cannot be {name!r}")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTopicName(
            f"the topic name has {len(name)} characters, more than {NAME_LENGTH_MAX}: {name[:40]!r}…"
        )
    if _LEGAL.fullmatch(name) is None:
        raise InvalidTopicName(
            f"the topic name {name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
        )


def collision_key(name: str) -> str:
    """Equal for names that could be mistaken for each other."""
    return name.replace(".", "_")
