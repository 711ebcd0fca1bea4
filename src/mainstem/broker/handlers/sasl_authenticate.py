"""SaslAuthenticate: one token of the client's mechanism, and the answer to it.

The client hears the same whatever hears the same; the reason stands in the log, without names or secrets of the client.
"""

from __future__ import annotations

import logging

from mainstem.broker.authentications import REFUSED, admit, begun
from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse
from mainstem.security.audit.audit_log import ALLOWED, of_session
from mainstem.security.audit.audit_log import REFUSED as REFUSED_OUTCOME
from mainstem.security.audit.config import AUTHENTICATION
from mainstem.security.sasl.conversation import Authentication
from mainstem.security.sasl.errors import AuthenticationFailed, IllegalState
from mainstem.security.sasl.steps import Accepted


async def handle(broker: Broker, request: SaslAuthenticateRequest, call: RequestContext) -> SaslAuthenticateResponse:
    session = call.session
    authentication = begun(broker, session)
    if authentication is None or broker.authenticator is None:
        return _refused(ErrorCode.ILLEGAL_SASL_STATE, ErrorCode.ILLEGAL_SASL_STATE.message)
    try:
        answer, lasts_ms = await broker.authenticator.step(authentication, session.host, request.auth_bytes)
    except IllegalState as error:
        return _refused(ErrorCode.ILLEGAL_SASL_STATE, str(error))
    except AuthenticationFailed as error:
        where = f"{session.host}, {authentication.mechanism_name}"
        _tell(broker, call, authentication, REFUSED_OUTCOME, str(error))
        broker.refusals.report(logging.WARNING, f"authentication failed ({where}): {error}")
        return _refused(ErrorCode.SASL_AUTHENTICATION_FAILED, REFUSED)
    if isinstance(answer, Accepted):
        admit(session, authentication)
        _tell(broker, call, authentication, ALLOWED)
    return SaslAuthenticateResponse(
        error_code=ErrorCode.NONE, error_message=None, auth_bytes=answer.token, session_lifetime_ms=lasts_ms
    )


def _tell(broker: Broker, call: RequestContext, authentication: Authentication, outcome: str, detail: str = "") -> None:
    if broker.audit is not None:
        mechanism = authentication.mechanism_name or ""
        event = of_session(AUTHENTICATION, call.session, call.client_id, mechanism, "", outcome, detail)
        broker.audit.add(event)


def _refused(error: ErrorCode, message: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=error, error_message=message, auth_bytes=b"")
