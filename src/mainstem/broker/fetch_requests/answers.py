"""The common ground of Fetch requests: how much may be read, Kafka's error codes of the kernel's verdicts, and the
answers to requests that go wrong as a whole."""

from __future__ import annotations

import logging

from mainstem.broker.broker import Broker
from mainstem.broker.errors import ERROR_OF_OUTCOME
from mainstem.broker.fetching.fetch_sessions import NO_SESSION
from mainstem.broker.request_context import RequestContext
from mainstem.broker.started import EncodedFrame, Later, Waiting
from mainstem.kernel import FetchScan, PlannedTopic, Verdict
from mainstem.model import Outcome
from mainstem.protocol import codec
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.headers import response_frame
from mainstem.protocol.messages.fetch import FetchResponse

API_KEY = 1
SESSIONS_FROM = 7

_ERROR_OF_REFUSAL = {
    Verdict.OK: ErrorCode.NONE,
    Verdict.UNKNOWN_TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Verdict.UNKNOWN_TOPIC_ID: ErrorCode.UNKNOWN_TOPIC_ID,
    Verdict.UNKNOWN_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Verdict.NOT_AUTHORIZED: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Verdict.OFFSET_NOT_AVAILABLE: ErrorCode.OFFSET_NOT_AVAILABLE,
}


def _code_of(verdict: int) -> int:
    if verdict in _ERROR_OF_REFUSAL:
        return _ERROR_OF_REFUSAL[Verdict(verdict)]
    outcomes = [outcome for outcome in Outcome if Verdict.__members__.get(outcome.name) == verdict]
    return ERROR_OF_OUTCOME[outcomes[0]] if outcomes else ErrorCode.UNKNOWN_SERVER_ERROR


CODES = tuple(int(_code_of(verdict)) for verdict in range(max(Verdict) + 1))
"""Kafka's error code of each verdict on a read, indexed by its number."""


_FAILED_TOPIC = PlannedTopic(0, 0, Verdict.UNKNOWN_TOPIC)
_FAILED_CODES = (int(ErrorCode.UNKNOWN_SERVER_ERROR),) * len(CODES)

Step = EncodedFrame | Waiting[EncodedFrame] | Later[EncodedFrame]
"""The next step of a request: an answer, a wait, or a task."""


def refused(error: ErrorCode, call: RequestContext) -> EncodedFrame:
    """The answer to a request that does not match its session."""
    response = FetchResponse(error_code=error, session_id=NO_SESSION, responses=())
    parts = codec.write_parts(response, call.version)
    return EncodedFrame(response_frame(call.correlation_id, API_KEY, call.version, parts), {error: 1})


def failed(broker: Broker, scan: FetchScan, call: RequestContext, error: Exception) -> EncodedFrame:
    """The answer to a request that failed: an error for the request, or, where that cannot be said, for each
    partition."""
    broker.faults.report(logging.ERROR, f"Fetch v{call.version} failed unexpectedly", error)
    if call.version >= SESSIONS_FROM:
        return refused(ErrorCode.UNKNOWN_SERVER_ERROR, call)
    plan = scan.plan
    plan.begin(lambda key: _FAILED_TOPIC, 0)
    buffers = plan.response(call.version, call.correlation_id, _FAILED_CODES)
    return EncodedFrame(buffers, {ErrorCode.UNKNOWN_SERVER_ERROR: len(plan)})


def bytes_max_of(broker: Broker, asked: int, call: RequestContext) -> int:
    """The most bytes of batches that a request is answered with which asks for that many."""
    bytes_max = min(asked, broker.config.fetch_bytes_max, broker.response_room.bytes_free())
    if broker.throttling is not None and broker.throttling.active:
        allowed = broker.throttling.fetch_bytes_max(call.session, call.client_id)
        bytes_max = bytes_max if allowed is None else min(bytes_max, allowed)
    return max(0, bytes_max)


def charged(broker: Broker, call: RequestContext, size_bytes: int) -> int:
    """Charge the client for the batches of a response; for how many ms it is throttled."""
    throttling = broker.throttling
    if throttling is None or not throttling.active:
        return 0
    return throttling.fetched(call.session, call.client_id, size_bytes)
