"""The programs share this: messages that libraries easily get wrong, and how a scenario ends.

A program is called with a scenario and an address. It ends with 0 when all was as it should be, with `NOT_OFFERED` when
the library has no such thing at this version, else with 1; its last line says why.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

NOT_OFFERED = 3
SECONDS_MAX = 40.0
"""A scenario waits no longer for any one thing: a machine that is busy with other work is allowed for."""

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
FIRST_MS = 1_700_000_000_000


class NotOffered(Exception):
    """The library has no such thing at this version."""


class Message(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


MESSAGES = tuple(
    Message(key, value, headers, FIRST_MS + 1_000 * number)
    for number, (key, value, headers) in enumerate((
        (b"key", b"plain", ()),
        (None, b"no key", ()),
        (b"", b"empty key", ()),
        (b"tombstone", None, ()),
        (b"empty value", b"", ()),
        (bytes(range(256)), bytes(range(256)), ()),
        (b"key", b"headers", (("name", b"value"), ("name", b"again"), ("empty", b""))),
        (b"long", b"compresses well " * 4_000, ()),
    ))
)  # fmt: skip

Scenario = Callable[[str], None]
"""Takes the address; raises what went wrong."""


def new_name(kind: str) -> str:
    """A name that nothing else bears: of a topic, a consumer group, a transaction."""
    return f"interop-{kind}-{uuid.uuid4().hex[:8]}"


def same(found: object, expected: object, what: str) -> None:
    """Raises AssertionError saying both."""
    if found != expected:
        raise AssertionError(f"{what}: {str(found)[:200]} instead of {str(expected)[:200]}")


def shared_out(shares: Sequence[Sequence[int]], partitions: int) -> bool:
    """Tell whether members of a consumer group share all partitions, each held once, and every member holds some."""
    held = sorted(partition for share in shares for partition in share)
    return held == list(range(partitions)) and all(shares)


def run(scenarios: Mapping[str, Scenario]) -> None:
    """The program: `python -m … SCENARIO HOST:PORT`."""
    name, address = sys.argv[1:]
    if name not in scenarios:
        sys.exit(NOT_OFFERED)
    try:
        scenarios[name](address)
    except NotOffered as missing:
        print(missing)
        sys.exit(NOT_OFFERED)
    except Exception as error:  # whatever a library raises is the row's answer
        print(f"{type(error).__name__}: {error}".replace("\n", " "))
        sys.exit(1)
