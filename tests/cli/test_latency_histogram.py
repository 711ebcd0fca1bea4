"""The histogram against the exact percentiles of the same latencies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem.cli.bench.latency_histogram import (
    NANOSECONDS_MAX,
    LatencyHistogram,
    bucket_end,
    bucket_of,
)

latencies = st.one_of(
    st.integers(0, 2000), st.integers(0, NANOSECONDS_MAX), st.integers(0, 41).map(lambda power: 1 << power)
)


def histogram_of(values: list[int]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for value in values:
        histogram.record(value)
    return histogram


def exact(values: list[int], per_mille: int) -> int:
    """The nearest rank, in whole numbers."""
    return sorted(values)[-(-len(values) * per_mille // 1000) - 1]


@given(latencies)
def test_a_bucket_holds_its_values_and_is_narrow(value: int) -> None:
    bucket = bucket_of(value)
    begin = bucket_end(bucket - 1) + 1 if bucket else 0
    assert begin <= value <= bucket_end(bucket)
    assert (bucket_end(bucket) - begin) * 128 <= begin


@given(st.lists(latencies, min_size=1, max_size=300), st.sampled_from([1, 500, 900, 950, 990, 999, 1000]))
def test_a_percentile_is_at_or_just_above_the_exact_one(values: list[int], per_mille: int) -> None:
    found = histogram_of(values).percentile(per_mille / 10)
    wanted = exact(values, per_mille)
    assert found is not None
    assert wanted <= found <= wanted + wanted // 128
    assert found <= max(values)


def test_ranks_of_many_are_not_rounded_up() -> None:
    # 99.9 % of 10,000 is 9,990 of them, which no binary fraction says.
    histogram = histogram_of([100] * 9990 + [200] * 10)
    assert [histogram.percentile(percent) for percent in (99.9, 99.91, 100)] == [100, 200, 200]


def test_nothing_has_no_percentile() -> None:
    assert histogram_of([]).percentile(50) is None


def test_what_is_out_of_range_counts_at_its_end() -> None:
    histogram = histogram_of([-5, NANOSECONDS_MAX * 3])
    assert histogram.count == 2
    assert histogram.percentile(50) == 0
    assert histogram.longest_ns == NANOSECONDS_MAX * 3


@given(st.lists(latencies, max_size=100), st.sets(st.integers(0, 256), min_size=1, max_size=5))
def test_counts_up_to_bounds_are_those_of_the_values(values: list[int], bounds: set[int]) -> None:
    # Bounds where buckets end: there the counts are exact.
    ends = sorted(bucket_end(bucket_of(bound * 7919)) for bound in bounds)
    rising = sorted(set(ends))
    counts = histogram_of(values).counts_up_to(rising)
    below = [-1, *rising]
    assert counts == [sum(low < value <= high for value in values) for low, high in zip(below, rising, strict=False)]


def test_a_bucket_that_a_bound_cuts_counts_once() -> None:
    histogram = histogram_of([1000, 1000])
    cut = bucket_end(bucket_of(1000)) - 1
    assert sum(histogram.counts_up_to([cut, 10_000])) == 2
