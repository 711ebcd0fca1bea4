"""AlterUserScramCredentials: gives users credentials, and takes them away.

A client sends the salted password, not the password; the node keeps two keys that are made of it (RFC 5802). As in
Kafka, that may have any length, though no password has one of another than the mechanism's hash, and whatever is wrong
with one of a user's changes refuses all of that user's, and no other user's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.model import ScramChange, ScramMechanism
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.sasl import (
    AlteredScramUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramDeletion,
    ScramUpsertion,
)
from mainstem.security.acls.acl import Operation
from mainstem.security.sasl import credentials
from mainstem.security.sasl.errors import InvalidCredential

Answer = tuple[ErrorCode, str | None]
OK: Answer = (ErrorCode.NONE, None)
MECHANISMS = {mechanism.number: mechanism for mechanism in ScramMechanism}


async def handle(
    broker: Broker, request: AlterUserScramCredentialsRequest, call: RequestContext
) -> AlterUserScramCredentialsResponse:
    wanted: list[ScramDeletion | ScramUpsertion] = [*request.deletions, *request.upsertions]
    times = Counter((change.name, change.mechanism) for change in wanted)
    if not broker.verdicts(call.session).allows_on_cluster(Operation.ALTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return _response({change.name: (code, code.message) for change in wanted})
    answers: dict[str, Answer] = {change.name: OK for change in wanted}
    changes: list[ScramChange] = []
    for change in wanted:
        if times[change.name, change.mechanism] > 1:
            answers[change.name] = ErrorCode.DUPLICATE_RESOURCE, "a credential cannot be altered twice in one request"
            continue
        made = _made(broker, change)
        if isinstance(made, ScramChange):
            changes.append(made)
        else:
            answers[change.name] = made
    taken = [change for change in changes if answers[change.user] is OK]
    for each, refusal in zip(taken, await _changed(broker, taken), strict=True):
        if refusal is not None:
            answers[each.user] = error_of_refusal(refusal), str(refusal)
    return _response(answers)


def _response(answers: Mapping[str, Answer]) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=tuple(
            AlteredScramUser(user=user, error_code=error, error_message=message)
            for user, (error, message) in answers.items()
        )
    )


def _made(broker: Broker, change: ScramDeletion | ScramUpsertion) -> ScramChange | Answer:
    mechanism = MECHANISMS.get(change.mechanism)
    if mechanism is None:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"there is no mechanism of number {change.mechanism}"
    try:
        credentials.check_name(change.name)
        if isinstance(change, ScramDeletion):
            if broker.credentials is None or broker.credentials.scram_credential(change.name, mechanism) is None:
                return ErrorCode.RESOURCE_NOT_FOUND, f"the user has no credential for {mechanism.value}"
            return ScramChange(change.name, mechanism, None)
        credentials.check_cost(change.salt, change.iterations)
    except InvalidCredential as error:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)
    if not change.salted_password:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "the salted password is empty"
    kept = credentials.of_salted(mechanism, change.salted_password, change.salt, change.iterations)
    return ScramChange(change.name, mechanism, kept)


async def _changed(broker: Broker, changes: Sequence[ScramChange]) -> Sequence[MainstemError | None]:
    if not changes:
        return []
    if broker.credentials is None:
        return [MainstemError("this node keeps no users")] * len(changes)
    try:
        return await broker.credentials.change_scram(changes)
    except MainstemError as refusal:
        return [refusal] * len(changes)
