"""The errors of coordinators and their logs. Clients never see these: they get Kafka's codes."""

from __future__ import annotations

from mainstem.broker.errors import BrokerError
from mainstem.protocol.error_codes import ErrorCode


class MachinesError(BrokerError):
    """Base of the errors of coordinators."""


class CoordinatorRefusal(MachinesError):
    """The coordinator cannot answer; the client gets `code`."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.message)
        self.code = code


class LogUnavailable(MachinesError):
    """A partition of an internal topic cannot be read or written now; clients get `code`."""

    def __init__(self, what: str, code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> None:
        super().__init__(what)
        self.code = code


class Unreadable(LogUnavailable):
    """The log is damaged at `offset`, or lacks it, as far as this node can tell now."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"reading at offset {offset}: {why}")
        self.offset = offset
        self.why = why
