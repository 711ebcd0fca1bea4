"""How long Hypothesis searches: `tests/conftest.py` chooses the profile."""

from __future__ import annotations

from hypothesis import settings

EXAMPLES_AT_LENGTH, EXAMPLES_AT_EACH_CHANGE = 60, 20
"""Of a test that asks for no number of its own."""


def examples(at_length: int) -> int:
    """How many a test gets that is to have this many at length: at each change a third of them."""
    return at_length * settings().max_examples // EXAMPLES_AT_LENGTH
