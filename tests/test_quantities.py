"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest

from mainstem.quantities import bytes_of, milliseconds_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("1024", 1024), ("1B", 1), ("64kB", 64_000), ("64KB", 64_000), ("64KiB", 65_536),
        ("256MB", 256_000_000), ("256 mb", 256_000_000), ("256MiB", 1 << 28), ("1.5GiB", 3 << 29), ("0.5kB", 500),
        ("2TB", 2 * 10**12), ("3PiB", 3 << 50),
    ],
)  # fmt: skip
def test_sizes(text: str, expected: int) -> None:
    assert bytes_of(text) == expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "expected a number of bytes"), ("MB", "expected"), ("-1", "expected"),
        ("1e9", "expected a number of bytes"),
        ("1XB", "no unit 'XB'"), ("1.5", "not a whole number of bytes"), ("0.0001kB", "not a whole number"),
        ("256M", "write 256MB for powers of 1000, 256MiB for 1024"), ("9" * 19, "expected"), ("٣MB", "expected"),
    ],
)  # fmt: skip
def test_what_is_not_a_size_is_refused(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        bytes_of(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500ms", 500), ("90s", 90_000), ("15m", 900_000), ("15min", 900_000), ("1h30m", 5_400_000), ("7d", 604_800_000),
     ("2w", 1_209_600_000), ("1d12h", 129_600_000)],
)  # fmt: skip
def test_durations(text: str, expected: int) -> None:
    assert milliseconds_of(text) == expected


@pytest.mark.parametrize("text", ["", "1", "h", "1 h", "1.5h", "-1h", "1y", "h1"])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration; expected a duration such as 500ms"):
        milliseconds_of(text)
