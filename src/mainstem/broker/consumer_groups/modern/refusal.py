"""Why a member's heartbeat is refused."""

from __future__ import annotations

from mainstem.broker.errors import CoordinatorRefusal
from mainstem.protocol.error_codes import ErrorCode


class MemberRefused(CoordinatorRefusal):
    """The request of a member cannot be granted; the client gets `code` and `why`."""

    def __init__(self, code: ErrorCode, why: str | None = None) -> None:
        super().__init__(code)
        self.why = why or code.message
