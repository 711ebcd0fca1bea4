"""Hypothesis strategies that make valid messages of any declaration and version.

Fields that a version lacks keep their default; tagged ones may have any value. Values stay within what the
oracles can represent: error codes that exist, and times that a `datetime` can hold.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.schema import (
    ArrayKind,
    FixedKind,
    Kind,
    StructKind,
    WireField,
    binary,
    boolean,
    declaration_of,
    float64,
    int64,
    records,
    string,
    uuid,
)

ELEMENTS_MAX = 3

_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
}
_ERROR_CODES = st.sampled_from([int(code) for code in ErrorCode])
# kio holds times of 64 bits in a `timedelta` or a `datetime`, which end long before 64 bits do.
_TIMES_MS = st.integers(0, 2**31) | st.just(-1)
_MOMENTS = frozenset({"issue_timestamp", "expiry_timestamp", "max_timestamp", "transaction_start_time"})
"""Fields of delegation tokens and transactions, in which kio has no -1 for what is unknown."""
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_UUIDS = st.uuids() | st.just(UUID(int=0))


def _primitive(kind: Kind[Any], name: str) -> st.SearchStrategy[Any]:
    if name.endswith("error_code"):
        return _ERROR_CODES
    if kind is int64 and name.removesuffix("_ms") in _MOMENTS:
        return st.integers(0, 2**31)
    if kind is int64 and name.endswith("_ms"):
        return _TIMES_MS
    if kind is boolean:
        return st.booleans()
    if kind is float64:
        return st.floats(allow_nan=False)
    if isinstance(kind, FixedKind):
        return st.integers(*_RANGES[kind.name])
    if kind is string:
        return _TEXTS
    if kind is uuid:
        return _UUIDS
    assert kind is binary or kind is records
    return st.binary(max_size=20)


def values(kind: Kind[Any], version: int, name: str = "") -> st.SearchStrategy[Any]:
    """Non-null values of a kind."""
    if isinstance(kind, StructKind):
        return messages(kind.struct_class, version)
    if isinstance(kind, ArrayKind):
        return st.lists(values(kind.element, version), max_size=ELEMENTS_MAX).map(tuple)
    return _primitive(kind, name)


def _field(field: WireField, version: int) -> st.SearchStrategy[Any]:
    strategy = values(field.kind, version, field.name)
    if field.has_default and field.default is not None:
        strategy |= st.just(field.default)
    return strategy | st.none() if version in field.nullable else strategy


_MADE: dict[tuple[type[Any], int], st.SearchStrategy[Any]] = {}


def messages(message_class: type[Any], version: int) -> st.SearchStrategy[Any]:
    """Instances of a message or nested class that `version` can carry. A strategy is checked when it is first used, so
    that one for all examples and tests saves a fifth of their time."""
    made = _MADE.get((message_class, version))
    if made is None:
        present = [field for field in declaration_of(message_class).fields if version in field.versions]
        made = st.builds(message_class, **{field.name: _field(field, version) for field in present})
        _MADE[message_class, version] = made
    return made
