"""The topics there are, as far as subscriptions depend on them: by name, by id, and by regular expression."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from mainstem.broker.errors import MemberRefused
from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode

EXPRESSION_LENGTH_MAX = 1_000
"""Characters of a regular expression. It is matched with every topic's name, in time linear in both."""

EXPRESSION_MEMORY_MAX = 1 << 20
"""Bytes that RE2 may take for one expression."""


class CurrentTopics(NamedTuple):
    """The topics there are now."""

    named: Callable[[str], Topic | None]
    by_id: Callable[[UUID], Topic | None]
    every: Callable[[], Iterable[Topic]]
    racks: Callable[[Topic], Sequence[frozenset[str]]] = lambda topic: ()
    """Per partition the racks that have a replica; empty: these say nothing about who should read it."""

    def known(self, names: Iterable[str]) -> list[Topic]:
        """Those of the named topics that exist, by name."""
        found = (self.named(name) for name in sorted(names))
        return [topic for topic in found if topic is not None]


def no_topics() -> CurrentTopics:
    return CurrentTopics(lambda name: None, lambda topic_id: None, tuple)


def hash_of(topics: Iterable[Topic]) -> int:
    """Says in 64 bits, signed, which topics there are and how many partitions they have; never zero."""
    digest = hashlib.blake2b(digest_size=8)
    for topic in topics:
        digest.update(topic.topic_id.bytes)
        digest.update(topic.partitions.to_bytes(8, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) or 1


def compiled(expression: str) -> Any:
    """An expression of RE2, which no name makes slow. Raises `MemberRefused` for one that is none, and on nodes without
    the package google-re2."""
    try:
        re2: Any = importlib.import_module("re2")
    except ImportError:
        why = "this node matches no regular expressions: install mainstem[regex]"
        raise MemberRefused(ErrorCode.INVALID_REGULAR_EXPRESSION, why) from None
    if len(expression) > EXPRESSION_LENGTH_MAX:
        why = f"the regular expression has {len(expression)} characters; {EXPRESSION_LENGTH_MAX} are the most"
        raise MemberRefused(ErrorCode.INVALID_REGULAR_EXPRESSION, why)
    options = re2.Options()
    options.max_mem = EXPRESSION_MEMORY_MAX
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        why = f"not a regular expression of RE2: {error}"
        raise MemberRefused(ErrorCode.INVALID_REGULAR_EXPRESSION, why) from None


def matching(expression: str, topics: Iterable[Topic], may_describe: Callable[[str], bool]) -> tuple[str, ...]:
    """The names that an expression matches as a whole, of topics that a client may see, internal ones among them as in
    Kafka. Raises `MemberRefused`."""
    matches = compiled(expression).fullmatch
    return tuple(sorted(topic.name for topic in topics if matches(topic.name) and may_describe(topic.name)))
