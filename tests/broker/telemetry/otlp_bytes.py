"""OpenTelemetry's `MetricsData`, as clients write it: the few messages of it that tests need."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

DELTA, CUMULATIVE = 1, 2


class Number(NamedTuple):
    name: str
    value: float | int = 1
    adds_up: bool = False
    temporality: int = CUMULATIVE
    labels: Mapping[str, str | bool | int | float] = {}


def metrics_data(numbers: Sequence[Number], resource: Mapping[str, str] | None = None) -> bytes:
    of_resource = _part(1, b"".join(_part(1, _attribute(*it)) for it in (resource or {}).items()))
    scope = b"".join(_part(2, _metric(number)) for number in numbers)
    return _part(1, of_resource + _part(2, scope))


def _metric(it: Number) -> bytes:
    value = (
        b"\x31" + struct.pack("<q", it.value) if isinstance(it.value, int) else b"\x21" + struct.pack("<d", it.value)
    )
    times = b"\x11" + bytes(8) + b"\x19" + bytes(8)
    point = _part(1, b"".join(_part(7, _attribute(*label)) for label in it.labels.items()) + times + value)
    if not it.adds_up:
        return _part(1, it.name.encode()) + _part(2, b"what it is") + _part(5, point)
    return _part(1, it.name.encode()) + _part(7, point + bytes((0x10, it.temporality, 0x18, 1)))


def _attribute(key: str, value: str | bool | int | float) -> bytes:
    if isinstance(value, str):
        encoded = _part(1, value.encode())
    elif isinstance(value, bool):
        encoded = bytes((0x10, value))
    elif isinstance(value, int):
        encoded = b"\x18" + varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    else:
        encoded = b"\x21" + struct.pack("<d", value)
    return _part(1, key.encode()) + _part(2, encoded)


def _part(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
