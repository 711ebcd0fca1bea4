"""Sizes and durations as people write them: `256MB`, `1.5GiB`, `90s`, `1h30m`.

A MB is a million bytes and a MiB 1,048,576, as everywhere in Mainstem. A bare number is bytes, or the unit that the
place defines.
"""

from __future__ import annotations

import re
from decimal import Decimal

SIZE_FORM = "a number of bytes, or a size such as 64kB, 256MB or 1.5GiB"
DURATION_FORM = "a duration such as 500ms, 90s, 15m, 1h30m, 7d or 2w"

_BYTES = {"b": 1, "": 1} | {
    f"{letter}{infix}b": (1024 if infix else 1000) ** power
    for power, letter in enumerate("kmgtp", 1)
    for infix in ("", "i")
}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([a-z]*)", re.IGNORECASE | re.ASCII)

_MILLISECONDS = {
    "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000,
}  # fmt: skip
_PART = re.compile(r"(\d{1,15})(ms|s|min|m|h|d|w)", re.ASCII)
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)


def bytes_of(text: str) -> int:
    """The bytes a size stands for. Raises ValueError that says what is wrong."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; expected {SIZE_FORM}")
    number, unit = match.groups()
    factor = _BYTES.get(unit.lower())
    if factor is None and unit.lower() + "b" in _BYTES:
        raise ValueError(f"{text!r} is not a size; write {number}{unit}B for powers of 1000, {number}{unit}iB for 1024")
    if factor is None:
        raise ValueError(f"{text!r} is not a size: there is no unit {unit!r}; expected {SIZE_FORM}")
    exact = Decimal(number) * factor
    if exact != int(exact):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(exact)


def milliseconds_of(text: str) -> int:
    """The milliseconds a duration with units stands for. Raises ValueError that says what is wrong."""
    if _DURATION.fullmatch(text.strip()) is None:
        raise ValueError(f"{text!r} is not a duration; expected {DURATION_FORM}")
    return sum(int(number) * _MILLISECONDS[unit] for number, unit in _PART.findall(text))
