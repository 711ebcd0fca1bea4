"""The routes of a node that shows what it has and changes none of it: what would change messages or topics is refused,
whoever asks.

The refusal is POLICY_VIOLATION: it is final, so that no client tries again, and it is about what the node is for, not
about rights (CLUSTER_AUTHORIZATION_FAILED would send people to look for some). Consumer groups work: their offsets are
the node's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mainstem.broker.broker import Broker
from mainstem.broker.dispatch.failures import FailureAnswer, failure_response
from mainstem.broker.dispatch.routes import ROUTES, Route
from mainstem.broker.errors import UnanswerableRequest
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages import ApiDeclaration

PRODUCE, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 0, 19, 20, 21
ALTER_CONFIGS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = 33, 37, 44
ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS = 43, 45
UPDATE_FEATURES, UNREGISTER_BROKER, ADD_RAFT_VOTER, REMOVE_RAFT_VOTER = 57, 64, 80, 81
ALTER_CLIENT_QUOTAS, ALTER_USER_SCRAM_CREDENTIALS = 49, 51
WRITE_TXN_MARKERS = 27
STREAMS_GROUP_HEARTBEAT = 88
CREATE_DELEGATION_TOKEN, RENEW_DELEGATION_TOKEN, EXPIRE_DELEGATION_TOKEN = 38, 39, 40

CHANGING = frozenset(
    {
        PRODUCE, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, ALTER_CONFIGS, CREATE_PARTITIONS,
        ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS, INCREMENTAL_ALTER_CONFIGS, ALTER_CLIENT_QUOTAS,
        ALTER_USER_SCRAM_CREDENTIALS, UPDATE_FEATURES, UNREGISTER_BROKER, ADD_RAFT_VOTER, REMOVE_RAFT_VOTER,
        WRITE_TXN_MARKERS, STREAMS_GROUP_HEARTBEAT,
        CREATE_DELEGATION_TOKEN, RENEW_DELEGATION_TOKEN, EXPIRE_DELEGATION_TOKEN,
    }
)  # fmt: skip
"""The keys of the APIs that are refused."""

REFUSAL = FailureAnswer(ErrorCode.POLICY_VIOLATION, "this node is read-only: it shows messages, and takes none")


class _Refused:
    """Handles the requests of one API: refuses all that they ask for."""

    def __init__(self, api: ApiDeclaration) -> None:
        self._api = api

    async def __call__(self, _broker: Broker, request: Any, call: RequestContext) -> Any:
        if self._api.api_key == PRODUCE and request.acks == 0:
            raise UnanswerableRequest("this node is read-only, and a producer with acks=0 cannot be told otherwise")
        return failure_response(self._api.response, call.version, request, REFUSAL)


def _read_only(route: Route) -> Route:
    if route.api.api_key not in CHANGING:
        return route
    return replace(route, handle=_Refused(route.api), start=None, begin=None)


READ_ONLY_ROUTES: tuple[Route, ...] = tuple(map(_read_only, ROUTES))
