"""A question of the matrix of access rules, and what questions and rules are about."""

from __future__ import annotations

from typing import Any, NamedTuple

TOPICS = ("acl-a", "acl-ab", "acl-b")
"""These exist; the groups of the same names have committed offsets."""
ABSENT = "acl-absent"
RULED = ("acl-a", "acl-ab", "acl-", "acl-absent", "*")
"""Names that rules are about."""


class Question(NamedTuple):
    name: str
    message: Any
    version: int
