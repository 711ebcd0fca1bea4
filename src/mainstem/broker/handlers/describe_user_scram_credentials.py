"""DescribeUserScramCredentials: which users have credentials, for which mechanisms, and of how many iterations; never
the credentials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.model import ScramCredential
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.sasl import (
    DescribedScramUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialInfo,
)
from mainstem.security.acls.acl import Operation

USERS_PER_TURN = 250
"""Users described within one turn of the event loop: about a millisecond."""


async def handle(
    broker: Broker, request: DescribeUserScramCredentialsRequest, call: RequestContext
) -> DescribeUserScramCredentialsResponse:
    if not broker.verdicts(call.session).allows_on_cluster(Operation.DESCRIBE):
        return _denied(request)
    users = {} if broker.credentials is None else broker.credentials.scram_users()
    if not request.users:
        pace = broker.turns.pace(USERS_PER_TURN)
        results = []
        for user, kept in dict(users).items():
            await pace.step()
            results.append(_described(user, kept))
    else:
        asked = Counter(user.name for user in request.users)
        results = [_answer(name, times, users.get(name, ())) for name, times in asked.items()]
    return DescribeUserScramCredentialsResponse(error_code=ErrorCode.NONE, error_message=None, results=tuple(results))


def _denied(request: DescribeUserScramCredentialsRequest) -> DescribeUserScramCredentialsResponse:
    """As Kafka's: the error stands for the whole, and for each user that was named."""
    error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    results = tuple(_refused(user.name, error, error.message) for user in request.users or ())
    return DescribeUserScramCredentialsResponse(error_code=error, error_message=error.message, results=results)


def _answer(name: str, times: int, kept: Sequence[ScramCredential]) -> DescribedScramUser:
    if times > 1:
        return _refused(name, ErrorCode.DUPLICATE_RESOURCE, "the request names the user more than once")
    if not kept:
        return _refused(name, ErrorCode.RESOURCE_NOT_FOUND, "the user has no credentials")
    return _described(name, kept)


def _described(name: str, kept: Sequence[ScramCredential]) -> DescribedScramUser:
    infos = [ScramCredentialInfo(mechanism=it.mechanism.number, iterations=it.iterations) for it in kept]
    infos.sort(key=lambda info: info.mechanism)
    return DescribedScramUser(user=name, error_code=ErrorCode.NONE, error_message=None, credential_infos=tuple(infos))


def _refused(name: str, error: ErrorCode, message: str) -> DescribedScramUser:
    return DescribedScramUser(user=name, error_code=error, error_message=message, credential_infos=())
