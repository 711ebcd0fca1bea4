"""The Prometheus text format, read back by a parser of its grammar."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.console.exposition import render
from mainstem.model import HistogramSample, Sample

_LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)')
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\[\\"n])*)"')
_ESCAPE = re.compile(r"\\(.)")


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Series and values; every line must be a comment or match the grammar."""
    series = {}
    for line in text.split("\n"):
        if not line or line.startswith("# "):
            continue
        match = _LINE.fullmatch(line)
        assert match is not None, line
        labels = tuple(
            (name, _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], value))
            for name, value in _LABEL.findall(match[2] or "")
        )
        series[match[1], labels] = float(match[3])
    return series


def test_one_header_per_metric_whatever_the_order_of_its_samples() -> None:
    text = render(
        [
            Sample("a_total", "counter", "first", 1, (("room", "x"),)),
            Sample("b", "gauge", "second", 2.5),
            Sample("a_total", "counter", "first", 3, (("room", "y"),)),
        ]
    )
    assert text == (
        "# HELP a_total first\n# TYPE a_total counter\n"
        'a_total{room="x"} 1\na_total{room="y"} 3\n'
        "# HELP b second\n# TYPE b gauge\nb 2.5\n"
    )


def test_histogram_has_buckets_sum_and_count() -> None:
    text = render([HistogramSample("t_seconds", "h", (0.1, float("inf")), (3, 5), 1.25, (("api", "Fetch"),))])
    assert parsed(text) == {
        ("t_seconds_bucket", (("api", "Fetch"), ("le", "0.1"))): 3,
        ("t_seconds_bucket", (("api", "Fetch"), ("le", "+Inf"))): 5,
        ("t_seconds_sum", (("api", "Fetch"),)): 1.25,
        ("t_seconds_count", (("api", "Fetch"),)): 5,
    }


@settings(max_examples=60, deadline=None)
@given(st.text(), st.text(), st.floats(allow_nan=False))
def test_any_text_and_any_number_come_back(label: str, description: str, value: float) -> None:
    text = render([Sample("m", "gauge", description, value, (("key", label),))])
    assert parsed(text.split("\n# TYPE ", 1)[1].split("\n", 1)[1]) == {("m", (("key", label),)): value}


def test_a_metric_of_two_kinds_is_a_programming_error() -> None:
    with pytest.raises(AssertionError, match="both a counter and a gauge"):
        render([Sample("m", "counter", "", 1), Sample("m", "gauge", "", 1)])
