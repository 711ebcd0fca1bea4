"""Reads the numbers out of OpenTelemetry's `MetricsData`, an encoding of protocol buffers that clients choose byte by
byte.

It reads the fields that it knows by the numbers of opentelemetry/proto/metrics/v1/metrics.proto, and passes over all
others. Kafka's clients push sums and gauges: it passes over histograms and summaries, too. Nothing is copied but names,
labels and numbers. Every field that is looked at counts against a bound, so that no bytes make the reader work long
between two points, nor in all: a client pushes again and again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mainstem.broker.errors import BrokerError
from mainstem.model import Buffer

POINTS_MAX = 5_000
"""Points that are read of one push: metrics of each of a thousand partitions."""
FIELDS_BETWEEN_POINTS_MAX = 2_000
"""Some milliseconds of work. Between two points of a Java client lie some fifty."""
FIELDS_MAX = 100 * POINTS_MAX
ATTRIBUTES_MAX = 32
"""Attributes of a point, and of what it is about; Kafka's clients give it ten at most."""
TEXT_BYTES_MAX = 256
"""Bytes of a metric's name, of an attribute's name and of its value."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE, _SIGNED, _DELTA = struct.Struct("<d"), struct.Struct("<q"), 1
Attributes = tuple[tuple[str, str], ...]


class MalformedTelemetry(BrokerError):
    """The bytes are no `MetricsData`, or more of it than a client may push."""


class Point(NamedTuple):
    """One number. `adds_up`: it only grows, as long as the client lives. `since_last`: it is what was added since the
    client's last push. `attributes` are those of the client before those of the number."""

    name: str
    value: float
    adds_up: bool
    since_last: bool
    attributes: Attributes


class OtlpReader:
    """Reads one push. `fields_read` says how much work was done so far."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self.fields_read = 0
        self._fields_at_point = 0
        self._points = 0

    def points(self) -> Iterator[Point]:
        """Raises `MalformedTelemetry`."""
        for resource_metrics in self._messages(self._data, 1):
            of_client: list[tuple[str, str]] = []
            for resource in self._messages(resource_metrics, 1):
                of_client += self._attributes(resource, 1)
            for scope_metrics in self._messages(resource_metrics, 2):
                for metric in self._messages(scope_metrics, 2):
                    yield from self._metric(metric, of_client)

    def _metric(self, metric: memoryview, of_client: list[tuple[str, str]]) -> Iterator[Point]:
        name, bodies = "", []
        for number, _, value in self._fields(metric):
            if number == 1:
                name = _text(value)
            elif number in (5, 7):
                bodies.append((number, _message(value)))
        for kind, body in bodies:
            points, delta, monotonic = [], False, False
            for number, _, value in self._fields(body):
                if number == 1:
                    points.append(_message(value))
                elif kind == 7 and number == 2:
                    delta = value == _DELTA
                elif kind == 7 and number == 3:
                    monotonic = bool(value)
            for point in points:
                read = self._point(point)
                if read is not None and name:
                    number_read, own = read
                    yield Point(name, number_read, monotonic, delta, (*of_client, *own))
                self._points += 1
                self._fields_at_point = self.fields_read
                if self._points > POINTS_MAX:
                    raise MalformedTelemetry(f"one push has at most {POINTS_MAX} points")

    def _point(self, point: memoryview) -> tuple[float, list[tuple[str, str]]] | None:
        number_read: float | None = None
        for number, wire_type, value in self._fields(point):
            if number in (4, 6) and wire_type == _FIXED64:
                (number_read,) = (_DOUBLE if number == 4 else _SIGNED).unpack(_message(value))
        return None if number_read is None else (float(number_read), self._attributes(point, 7))

    def _attributes(self, message: memoryview, field: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for attribute in self._messages(message, field):
            key, text = "", ""
            for number, _, value in self._fields(attribute):
                if number == 1:
                    key = _text(value)
                elif number == 2:
                    text = self._any_value(_message(value))
            if key and text:
                found.append((key, text))
            if len(found) > ATTRIBUTES_MAX:
                raise MalformedTelemetry(f"more than {ATTRIBUTES_MAX} attributes")
        return found

    def _any_value(self, message: memoryview) -> str:
        """The value as text; empty for lists and the like."""
        for number, wire_type, value in self._fields(message):
            if number == 1:
                return _text(value)
            if number == 2 and wire_type == _VARINT:
                return "true" if value else "false"
            if number == 3 and isinstance(value, int):
                return str(value - (1 << 64) if value >> 63 else value)
            if number == 4 and wire_type == _FIXED64:
                return repr(_DOUBLE.unpack(_message(value))[0])
        return ""

    def _messages(self, message: memoryview, field: int) -> Iterator[memoryview]:
        for number, wire_type, value in self._fields(message):
            if number == field and wire_type == _BYTES:
                yield _message(value)

    def _fields(self, message: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
        """The fields of a message: number, wire type, and a number or bytes."""
        position, end = 0, len(message)
        while position < end:
            self.fields_read += 1
            if self.fields_read - self._fields_at_point > FIELDS_BETWEEN_POINTS_MAX or self.fields_read > FIELDS_MAX:
                raise MalformedTelemetry("too many fields for what it measures")
            key, position = _varint(message, position)
            number, wire_type = key >> 3, key & 7
            value: int | memoryview
            if wire_type == _VARINT:
                value, position = _varint(message, position)
            else:
                if wire_type == _BYTES:
                    size, position = _varint(message, position)
                elif wire_type in (_FIXED64, _FIXED32):
                    size = 8 if wire_type == _FIXED64 else 4
                else:
                    raise MalformedTelemetry(f"wire type {wire_type} is none of protocol buffers")
                if size > end - position:
                    raise MalformedTelemetry(f"a field of {size} bytes, of which {end - position} are there")
                value, position = message[position : position + size], position + size
            yield number, wire_type, value


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """The number, at most 64 bits, and where it ends."""
    value = shift = 0
    while position < len(message) and shift < 70:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
    raise MalformedTelemetry("a number has no end")


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise MalformedTelemetry("a number stands where bytes are expected")
    return value


def _text(value: int | memoryview) -> str:
    data = _message(value)
    if len(data) > TEXT_BYTES_MAX:
        raise MalformedTelemetry(f"a text of {len(data)} bytes; {TEXT_BYTES_MAX} are the most")
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise MalformedTelemetry("a text is not UTF-8") from None
