"""The answer to a request whose handler failed: UNKNOWN_SERVER_ERROR, where the response has room for it.

Only responses with an error code at their top level have: in the others an error belongs to an item, and an
answer without the items asked for would be taken for a success.
"""

from __future__ import annotations

from typing import Any

from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.schema import ArrayKind, FixedKind, WireField, declaration_of, string


def failure_response(response_class: type[Any], version: int) -> Any | None:
    """A response of that class and version that says UNKNOWN_SERVER_ERROR; None when it cannot."""
    fields = declaration_of(response_class).fields
    if not any(field.name == "error_code" and version in field.versions for field in fields):
        return None
    values = {field.name: _nothing(field, version) for field in fields if not field.has_default}
    values["error_code"] = ErrorCode.UNKNOWN_SERVER_ERROR
    return response_class(**values)


def _nothing(field: WireField, version: int) -> Any:
    """The value of a field about which there is nothing to say."""
    if version in field.nullable:
        return None
    if isinstance(field.kind, ArrayKind):
        return ()
    if isinstance(field.kind, FixedKind):
        return False if field.kind.format == "?" else 0
    return "" if field.kind is string else b""
