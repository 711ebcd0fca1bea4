"""The answer to a request that fails as a whole: an error code, wherever the response has room for one. Of a request
whose handler failed it is UNKNOWN_SERVER_ERROR.

Some responses have an error code at their top level. In the others an error belongs to an item, and clients would
take an answer without the items they asked for as a success: so every item of the request gets an item of the
response that names it, down to those with a code of their own. The response's items are made by their declarations:
the fields that name an item come from the request's (`_NAMES`), the other fields have empty values.

A request without items gets an empty answer, since nothing has failed. A request for everything, without a list, gets
one item where items need no name (a log directory); a Metadata response without brokers is one that clients drop, and
ask again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.schema import (
    ZERO_UUID,
    ArrayKind,
    FixedKind,
    StructKind,
    WireField,
    declaration_of,
    string,
    uuid,
)

ERROR_CODE = "error_code"
ERROR_MESSAGE = "error_message"
_PARTITION_ERROR_CODE = "partition_error_code"
"""Its name in AddPartitionsToTxn."""

_NAMES: Mapping[str, tuple[str, ...]] = {
    "partition": ("partition", "partition_index"),
    "partition_index": ("partition_index", "partition"),
    "partition_id": ("partition_id",),
    "index": ("index",),
    "topic": ("topic", "name"),
    "topic_name": ("topic_name",),
    "name": ("name", "topic"),
    "topic_id": ("topic_id",),
    "user": ("user", "name"),
    "group_id": ("group_id",),
    "transactional_id": ("transactional_id",),
    "producer_id": ("producer_id",),
    "key": ("key",),
    "resource_type": ("resource_type",),
    "resource_name": ("resource_name",),
}
"""Fields by which a response names an item, and what requests call them."""


class FailureAnswer(NamedTuple):
    """The answer to a request."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    message: str | None = None
    """The place of an error message in the response, if it has room for one."""


UNEXPECTED = FailureAnswer()


def failure_response(
    response_class: type[Any], version: int, request: Any = None, error: FailureAnswer = UNEXPECTED
) -> Any | None:
    """A response of that class and version with this error for everything the request asked for; None when there can
    be none, since the request is not known."""
    if _has_code(response_class, version):
        return _made(response_class, version, _named(response_class, version, error))
    if request is None:
        return None
    return _made(response_class, version, _lists(response_class, version, request, error))


def _lists(response_class: type[Any], version: int, asked: Any, error: FailureAnswer) -> dict[str, tuple[Any, ...]]:
    """The lists of a response, or of an item of it, that have error codes somewhere within, filled from the
    request; the first of them gets all of the request's items, since few responses have more than one."""
    for field in declaration_of(response_class).fields:
        item_class = _item_class(field)
        if version in field.versions and item_class is not None and _leads_to_code(item_class, version):
            items = [_item(item_class, version, one, error) for one in _items(asked, version)]
            if not items and not _is_named(item_class) and _has_code(item_class, version):
                items = [_made(item_class, version, _named(item_class, version, error))]
            return {field.name: tuple(item for item in items if item is not None)}
    return {}


def _items(asked: Any, version: int) -> Iterable[Any]:
    """The items of all lists of a request, or of an item of it."""
    for field in declaration_of(type(asked)).fields:
        if version in field.versions and isinstance(field.kind, ArrayKind):
            yield from getattr(asked, field.name) or ()


def _item(item_class: type[Any], version: int, asked: Any, error: FailureAnswer) -> Any | None:
    named: dict[str, Any] = {}
    fields = declaration_of(item_class).fields
    if isinstance(asked, (str, int)):  # a list of plain names or numbers
        kind = str if isinstance(asked, str) else int
        place = next((field.name for field in fields if field.name in _NAMES and _takes(field, kind)), None)
        if place is None:
            return None
        named[place] = asked
    else:
        for field in fields:
            for name in _NAMES.get(field.name, ()):
                if hasattr(asked, name):
                    named[field.name] = getattr(asked, name)
                    break
    if _has_code(item_class, version):
        named |= _named(item_class, version, error)
    elif not isinstance(asked, (str, int)):
        named |= _lists(item_class, version, asked, error)
    return _made(item_class, version, named)


def _named(item_class: type[Any], version: int, error: FailureAnswer) -> dict[str, Any]:
    """The fields of an item that name an error."""
    has_message = any(
        field.name == ERROR_MESSAGE and version in field.versions for field in declaration_of(item_class).fields
    )
    return {_code_field(item_class, version): error.code, **({ERROR_MESSAGE: error.message} if has_message else {})}


def _takes(field: WireField, kind: type) -> bool:
    return field.kind is string if kind is str else isinstance(field.kind, FixedKind) and field.kind.format in "bhiq"


def _item_class(field: WireField) -> type[Any] | None:
    if isinstance(field.kind, ArrayKind) and isinstance(field.kind.element, StructKind):
        return field.kind.element.struct_class
    return None


def _has_code(response_class: type[Any], version: int) -> bool:
    return bool(_code_field(response_class, version))


def _code_field(item_class: type[Any], version: int) -> str:
    """The name of the field for an error code; empty: there is none."""
    names = (ERROR_CODE, _PARTITION_ERROR_CODE)
    fields = declaration_of(item_class).fields
    return next((field.name for field in fields if field.name in names and version in field.versions), "")


def _is_named(item_class: type[Any]) -> bool:
    return any(field.name in _NAMES for field in declaration_of(item_class).fields)


def _leads_to_code(item_class: type[Any], version: int) -> bool:
    if _has_code(item_class, version):
        return True
    nested = map(_item_class, declaration_of(item_class).fields)
    return any(each is not None and _leads_to_code(each, version) for each in nested)


def _made(response_class: type[Any], version: int, named: Mapping[str, Any]) -> Any:
    fields = declaration_of(response_class).fields
    values = {field.name: _nothing(field, version) for field in fields if not field.has_default}
    return response_class(**{**values, **named})


def _nothing(field: WireField, version: int) -> Any:
    """The empty value of a field."""
    if version in field.nullable:
        return None
    if isinstance(field.kind, ArrayKind):
        return ()
    if isinstance(field.kind, FixedKind):
        return False if field.kind.format == "?" else 0
    if field.kind is uuid:
        return ZERO_UUID
    return "" if field.kind is string else b""
