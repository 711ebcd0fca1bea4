"""Numbers out of `MetricsData`, and bytes that mean harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.telemetry.otlp_bytes import DELTA, Number, metrics_data, varint

from mainstem.broker.telemetry import otlp
from mainstem.broker.telemetry.otlp import MalformedTelemetry, OtlpReader, Point


def points(data: bytes) -> list[Point]:
    return list(OtlpReader(data).points())


def test_gauges_and_sums_with_the_attributes_of_client_and_number() -> None:
    data = metrics_data(
        [
            Number("lag", 2.5, labels={"topic": "t", "partition": 7, "paused": False, "share": -0.5}),
            Number("sent", -3, adds_up=True),
            Number("polled", 4, adds_up=True, temporality=DELTA),
        ],
        {"client_rack": "r1"},
    )
    rack = ("client_rack", "r1")
    labels = (("topic", "t"), ("partition", "7"), ("paused", "false"), ("share", "-0.5"))
    assert points(data) == [
        Point("lag", 2.5, False, False, (rack, *labels)),
        Point("sent", -3.0, True, False, (rack,)),
        Point("polled", 4.0, True, True, (rack,)),
    ]
    assert points(data + data) == points(data) * 2, "parts may come one behind the other"
    assert points(b"") == []


def test_fields_of_other_versions_are_passed_over() -> None:
    unknown = varint(99 << 3 | 5) + b"abcd" + varint(98 << 3) + varint(2**63) + varint(97 << 3 | 1) + bytes(8)
    assert points(unknown + metrics_data([Number("a")]) + unknown) == points(metrics_data([Number("a")]))


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\x0a\x05abc", "5 bytes, of which 3 are there"),
        (b"\x0b", "wire type 3"),
        (b"\xff" * 11, "no end"),
        (metrics_data([Number("x" * 257)]), "a text of 257 bytes"),
        (metrics_data([Number("a", labels={"k": "x" * 257})]), "a text of 257 bytes"),
        (metrics_data([Number("a", labels={f"k{n}": "v" for n in range(33)})]), "more than 32 attributes"),
        (metrics_data([Number("a")] * 5_001), "at most 5000 points"),
        (varint(99 << 3) + b"\x00" + (varint(99 << 3) + b"\x00") * 2_000, "too many fields"),
        (metrics_data([Number("a")]).replace(b"a", b"\xff"), "not UTF-8"),
    ],
)
def test_bytes_that_are_refused(data: bytes, fault: str) -> None:
    with pytest.raises(MalformedTelemetry, match=fault):
        points(data)


@given(st.binary(max_size=400), st.binary(max_size=40), st.integers(0, 400))
def test_whatever_the_bytes_are_the_reader_ends_within_its_bounds(data: bytes, inserted: bytes, place: int) -> None:
    good = metrics_data([Number("lag", 2.5, labels={"topic": "t"}), Number("sent", 3, adds_up=True)], {"a": "b"})
    for hostile in (data, good[:place] + inserted + good[place:], good[:place]):
        reader = OtlpReader(hostile)
        try:
            for point in reader.points():
                assert point.name
        except MalformedTelemetry:
            pass
        assert reader.fields_read <= min(otlp.FIELDS_MAX, 4 * len(hostile) + 1)
