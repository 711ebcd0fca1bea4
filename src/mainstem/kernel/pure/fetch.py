"""The scan of a Fetch body: from bytes to a header and a plan, without an object per partition.

Pure-Python twin of the compiled scan; both are one function, `scan_fetch`, of the same signature.

A body whose structure is wrong raises `MalformedFetch`. Every length is checked against the bytes that remain, every
array count against the smallest size of its elements, before anything is made of it. Fields that the broker does not
use (the replica's identity, tagged fields) are stepped over; bytes behind the request are ignored, as
everywhere but in Produce.

A request of very many partitions is scanned part by part, each of which has a plan of its own.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from mainstem.kernel.errors import MalformedBody, MalformedFetch
from mainstem.kernel.pure.fetch_plan import FetchPlan
from mainstem.kernel.pure.plan_row import FetchKey
from mainstem.kernel.pure.request_body import read_count, read_text_length, skip_tags

SESSIONS_FROM = 7
LEADER_EPOCHS_FROM = 9
RACKS_FROM = 11
FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
REPLICA_STATE_FROM = 15

ENTRIES_MAX = 2_000_000
"""Topics and partitions of one request: all queues that a node is made for, were each a topic of its own."""

ENTRIES_AT_ONCE = 125_000
"""Topics and partitions of one scan, forgotten ones included: the largest clusters have some thousand partitions on a
node. An entry costs about a hundred and fifty bytes of memory while its plan lasts; each look at all of them is a turn
of the event loop, of some ten milliseconds for so many. Partitions beyond it go into further plans."""

_TOPIC_BYTES_MIN = 3  # flexible: an empty name, no partitions, no tags
_PARTITION_BYTES_MIN = 16  # version 4: index, offset, size

_I32 = struct.Struct(">i")
_LIMITS = struct.Struct(">iiib")  # wait, least bytes, most bytes, isolation level
_SESSION = struct.Struct(">ii")  # id, epoch
_V4 = struct.Struct(">iqi")
_V5 = struct.Struct(">iqqi")
_V9 = struct.Struct(">iiqqi")
_V12 = struct.Struct(">iiqiqi")


class FetchRest(NamedTuple):
    """The place where a scan stopped."""

    position: int
    """In the frame that was scanned."""
    topics: int
    """Topics not begun yet."""
    key: FetchKey | None
    """The topic that was begun; None: the scan stopped between topics."""
    partitions: int
    """Those left of that topic."""
    entries: int
    """Topics and partitions that the request has claimed so far."""


class FetchScan(NamedTuple):
    """A Fetch request. Fields that its version lacks have their defaults."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    plan: FetchPlan
    """The partitions asked for, in the order of the request."""
    forgotten: list[tuple[FetchKey, list[int]]]
    """Topics, and partitions of each, that the session is to leave out from now on."""
    rest: FetchRest | None
    """The place where `scan_more` goes on; None: the plan has all partitions."""
    rack: str = ""
    """The reader's rack, which stands behind the partitions: known once `rest` is None."""


def scan_fetch(frame: memoryview, position: int, version: int, most: int = ENTRIES_AT_ONCE) -> FetchScan:
    """Scan the Fetch body of a version from 4 to 18 that stands at `position` of `frame`, or its first `most` topics
    and partitions; `rest` then says where `scan_more` goes on.

    Raises MalformedFetch. The result holds no part of the frame.
    """
    return _scan(frame, position, version, None, most)


def scan_more(frame: memoryview, position: int, version: int, before: FetchScan, most: int) -> FetchScan:
    """Scan what the scan before left, at most so many topics and partitions of it: it stands at `position`. The fields
    of the request are those of the scan before. Raises as `scan_fetch`."""
    if before.rest is None or most < 1:
        raise ValueError("nothing is left to scan")
    return _scan(frame, position, version, before, most)


def _scan(frame: memoryview, position: int, version: int, before: FetchScan | None, most: int) -> FetchScan:
    try:
        if before is None:
            head, position = _head(frame, position, version)
        else:
            head = before
        return _body(frame, position, version, head, most)
    except (IndexError, struct.error):
        raise MalformedFetch(f"a Fetch v{version} request of {len(frame)} bytes ends early") from None
    except MalformedFetch:
        raise
    except MalformedBody as error:
        raise MalformedFetch(str(error)) from None


def _head(frame: memoryview, position: int, version: int) -> tuple[FetchScan, int]:
    """The bytes before the topics."""
    if version < REPLICA_STATE_FROM:
        _I32.unpack_from(frame, position)  # the replica's id
        position += 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(frame, position)
    position += _LIMITS.size
    session_id, session_epoch = 0, -1
    if version >= SESSIONS_FROM:
        session_id, session_epoch = _SESSION.unpack_from(frame, position)
        position += _SESSION.size
    limits = max_wait_ms, min_bytes, max_bytes, isolation_level
    return FetchScan(*limits, session_id, session_epoch, FetchPlan(), [], None), position


def _body(frame: memoryview, position: int, version: int, head: FetchScan, most: int) -> FetchScan:
    """The topics, and what stands behind them if there are no more."""
    plan = FetchPlan()
    taken, rest, position = _topics(frame, position, version, plan, head.rest, most)
    forgotten: list[tuple[FetchKey, list[int]]] = []
    rack = ""
    if rest is None:
        if version >= SESSIONS_FROM:
            position = _forgotten(frame, position, version, taken, forgotten)
        if version >= RACKS_FROM:
            rack, position = _text(frame, position, version, "a rack")
        if version >= FLEXIBLE_FROM:
            skip_tags(frame, position)
    return head._replace(plan=plan, forgotten=forgotten, rest=rest, rack=rack)


def _topics(
    frame: memoryview, position: int, version: int, plan: FetchPlan, rest: FetchRest | None, most: int
) -> tuple[int, FetchRest | None, int]:
    """Put topics and partitions into the plan, `most` of them. Returns how many, where it stopped if there are more,
    and the position behind."""
    flexible = version >= FLEXIBLE_FROM
    taken = partitions = 0
    key: FetchKey | None = None
    if rest is None:
        topics, position = read_count(frame, position, flexible, _TOPIC_BYTES_MIN)
        entries = _more_entries(0, topics, ENTRIES_MAX)
    else:
        _, topics, key, partitions, entries = rest
    while key is not None or topics > 0:
        if key is None:
            if taken >= most:
                break
            topics -= 1
            key, position = _key(frame, position, version)
            partitions, position = read_count(frame, position, flexible, _PARTITION_BYTES_MIN)
            entries = _more_entries(entries, partitions, ENTRIES_MAX)
            taken += 1
        plan.add_topic(key)
        some = min(partitions, most - taken)
        partitions -= some
        taken += some
        for _ in range(some):
            position = _partition(frame, position, version, plan)
        if partitions > 0:
            break
        if flexible:
            position = skip_tags(frame, position)
        key = None
    if key is None and topics == 0:
        return taken, None, position
    return taken, FetchRest(position, topics, key, partitions, entries), position


def _partition(frame: memoryview, position: int, version: int, plan: FetchPlan) -> int:
    leader_epoch = fetched_epoch = -1
    if version >= FLEXIBLE_FROM:
        partition, leader_epoch, offset, fetched_epoch, _, size = _V12.unpack_from(frame, position)
        position = skip_tags(frame, position + _V12.size)
    elif version >= LEADER_EPOCHS_FROM:
        partition, leader_epoch, offset, _, size = _V9.unpack_from(frame, position)
        position += _V9.size
    elif version >= 5:
        partition, offset, _, size = _V5.unpack_from(frame, position)
        position += _V5.size
    else:
        partition, offset, size = _V4.unpack_from(frame, position)
        position += _V4.size
    plan.add_partition(partition, offset, size, leader_epoch, fetched_epoch)
    return position


def _forgotten(
    frame: memoryview, position: int, version: int, entries: int, forgotten: list[tuple[FetchKey, list[int]]]
) -> int:
    flexible = version >= FLEXIBLE_FROM
    topic_count, position = read_count(frame, position, flexible, _TOPIC_BYTES_MIN)
    entries = _more_entries(entries, topic_count, ENTRIES_AT_ONCE)
    for _ in range(topic_count):
        key, position = _key(frame, position, version)
        count, position = read_count(frame, position, flexible, 4)
        entries = _more_entries(entries, count, ENTRIES_AT_ONCE)
        forgotten.append((key, list(struct.unpack_from(f">{count}i", frame, position))))
        position += 4 * count
        if flexible:
            position = skip_tags(frame, position)
    return position


def _more_entries(entries: int, count: int, most: int) -> int:
    if entries + count > most:
        raise MalformedFetch(f"more than {most} topics and partitions in a request")
    return entries + count


def _key(frame: memoryview, position: int, version: int) -> tuple[FetchKey, int]:
    """A topic's name, or the 16 bytes of its id, and the position behind."""
    if version >= TOPIC_IDS_FROM:
        if len(frame) - position < 16:
            raise IndexError
        return bytes(frame[position : position + 16]), position + 16
    return _text(frame, position, version, "a topic name")


def _text(frame: memoryview, position: int, version: int, what: str) -> tuple[str, int]:
    """A string, and the position behind."""
    size, position = _text_length(frame, position, version >= FLEXIBLE_FROM)
    try:
        return str(frame[position : position + size], "utf-8"), position + size
    except UnicodeDecodeError:
        raise MalformedFetch(f"{what} is not UTF-8") from None


def _text_length(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """The length of a string that may not be null."""
    value, position = read_text_length(frame, position, flexible)
    if value < 0:
        raise MalformedFetch("a string is null that may not be")
    return value, position
