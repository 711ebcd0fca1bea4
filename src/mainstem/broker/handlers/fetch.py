"""Fetch: batches of partitions, waiting for them when there are not enough yet.

`begin` has the kernel scan the request into a plan of reads (or uses the plan of its session), and a `PendingFetch`
(`broker/fetch_requests/`) has the store settle what it can from memory. If that is enough, as for readers that are
behind by little, the kernel writes the response within the dispatch, no larger than the reader has shown to take. If
there is not enough yet, the store says when there is more, and another round begins. If memory does not have
everything, a task goes on, and the store reads the disks.

A consumer that names its rack is sent to a replica there, and served at that replica's node
(`broker/fetching/nearer_replicas.py`). The kernel settles such partitions with the others: `plan.nearer` and
`plan.from_followers` say what it goes by.

Readers of committed data get batches before the last stable offset, and a list of the aborted transactions among them;
the others get all, and no list.
"""

from __future__ import annotations

from functools import partial

from mainstem.broker.broker import Broker
from mainstem.broker.fetch_requests.answers import Step, failed, refused
from mainstem.broker.fetch_requests.fetch_in_parts import FetchInParts
from mainstem.broker.fetch_requests.pending_fetch import ROWS_AT_ONCE, TOPICS_PER_TURN, PendingFetch
from mainstem.broker.fetching.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from mainstem.broker.request_context import RequestContext
from mainstem.broker.started import EncodedFrame
from mainstem.kernel import FetchScan, scan_fetch
from mainstem.ports import OWN_FRAME_BYTES_MIN
from mainstem.protocol.error_codes import ErrorCode

TOPIC_IDS_FROM = 13

_HELD_PER_BYTE = 11
"""A partition is 16 bytes in a request, and 168 in the plan of its reads."""

_PLAN_BYTES_MAX = 32 * 1024 * 1024
"""A plan of 125,000 entries, half of them topics with names of their own."""


def held_bytes(size_bytes: int) -> int:
    """The memory that a Fetch request of so many bytes takes: its plan; of more partitions than one plan holds, the
    request and one plan after the other."""
    return min(_HELD_PER_BYTE * size_bytes, size_bytes + _PLAN_BYTES_MAX)


def begin(broker: Broker, frame: memoryview, position: int, call: RequestContext) -> Step:
    """Answer a Fetch request whose body stands at `position` at once, or return its next step. Raises
    MalformedFetch."""
    scan = scan_fetch(frame, position, call.version)
    try:
        if scan.rest is not None:
            return _begin_in_parts(broker, scan, frame[position:], call)
        if len(scan.plan) > ROWS_AT_ONCE or scan.plan.topics_named > TOPICS_PER_TURN:
            return partial(_begin_later, broker, scan, call)
        return _begun(broker, scan, call)
    except Exception as error:
        return failed(broker, scan, call, error)


async def _begin_later(broker: Broker, scan: FetchScan, call: RequestContext) -> EncodedFrame:
    """Begin a request that takes a turn of the event loop for each pass over all of its partitions."""
    try:
        await broker.turns.take()
        opened = _resolved(broker, scan, call)
        return refused(opened, call) if isinstance(opened, ErrorCode) else await opened.go_in_turns()
    except Exception as error:
        return failed(broker, scan, call, error)


def _begin_in_parts(broker: Broker, scan: FetchScan, body: memoryview, call: RequestContext) -> Step:
    """Begin a request of more partitions than one plan holds, which no session follows either."""
    if scan.session_id != NO_SESSION:
        broker.fetch_sessions.close(scan.session_id)
    if scan.session_epoch not in (FINAL_EPOCH, INITIAL_EPOCH):
        return refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, call)
    return FetchInParts(broker, call, body if len(body) > OWN_FRAME_BYTES_MIN else bytes(body)).go


def _begun(broker: Broker, scan: FetchScan, call: RequestContext) -> Step:
    fetch = _resolved(broker, scan, call)
    if isinstance(fetch, ErrorCode):
        return refused(fetch, call)
    return fetch.go_in_turns if fetch.is_long else fetch.go()


def _resolved(broker: Broker, scan: FetchScan, call: RequestContext) -> PendingFetch | ErrorCode:
    if scan.session_epoch == FINAL_EPOCH and scan.session_id == NO_SESSION:
        return PendingFetch(broker, call, scan, scan.plan, None, incremental=False)
    return _open(broker, scan, call)


# sessions


def _open(broker: Broker, scan: FetchScan, call: RequestContext) -> PendingFetch | ErrorCode:
    """Resolve a request to the partitions it follows, and move its session on."""
    sessions = broker.fetch_sessions
    by_id = call.version >= TOPIC_IDS_FROM
    now_ms = broker.clock.now_ms()
    if scan.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if scan.session_id != NO_SESSION:
            sessions.close(scan.session_id)
        session = None
        if scan.session_epoch == INITIAL_EPOCH:
            session = sessions.open(scan.plan, now_ms, by_id=by_id)
        return PendingFetch(broker, call, scan, scan.plan, session, incremental=False)
    session = sessions.find(scan.session_id, now_ms)
    if session is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if session.epoch != scan.session_epoch:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    if session.by_id != by_id:
        return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    if not sessions.update(session, scan.plan, scan.forgotten):
        sessions.close(session.session_id)  # it would have to forget partitions the client relies on
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session.advance()
    if not len(session.plan):
        sessions.close(session.session_id)
        return PendingFetch(broker, call, scan, session.plan, None, incremental=False)
    return PendingFetch(broker, call, scan, session.plan, session, incremental=True)
