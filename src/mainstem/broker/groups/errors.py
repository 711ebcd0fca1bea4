"""What can go wrong in the group coordinator. Requests never see these: they get Kafka's codes."""

from __future__ import annotations

from mainstem.broker.errors import BrokerError
from mainstem.protocol.error_codes import ErrorCode


class GroupsError(BrokerError):
    """Base of the group coordinator's errors."""


class Refused(GroupsError):
    """The coordinator cannot answer; `code` is what the client is told."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.message)
        self.code = code


class LogUnavailable(GroupsError):
    """A partition of the internal topic cannot be read or written now. `code` is what clients are told."""

    def __init__(self, what: str, code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> None:
        super().__init__(what)
        self.code = code
