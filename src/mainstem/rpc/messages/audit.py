"""A node hands its audit records to another one, which leads a partition of their topic."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.rpc.wire.method import Method

RECORDS_MAX = 500
RECORD_BYTES_MAX = 32 * 1024
"""Ten texts of 255 characters, each of which JSON may write with six bytes or more, and their names."""


class AuditRecords(msgspec.Struct, frozen=True):
    """JSON objects, oldest first."""

    records: Annotated[
        list[Annotated[bytes, msgspec.Meta(max_length=RECORD_BYTES_MAX)]],
        msgspec.Meta(min_length=1, max_length=RECORDS_MAX),
    ]


class AuditTaken(msgspec.Struct, frozen=True):
    """`taken`: all of them are committed; else none is known to be, and the caller hands them in again."""

    taken: bool


HAND_AUDIT = Method(124, "audit.hand", AuditRecords, AuditTaken, nodes_only=True)
