"""Responses as simulated clients get them."""

from __future__ import annotations

import pytest
from tests.simulation.oracle import Violation
from tests.simulation.whole.connection import frames_of

from mainstem.kernel import ScatteredBytes


def test_responses_are_whole_wherever_their_bytes_lie() -> None:
    """A Fetch response of many batches is made of views of where they are."""
    scattered = ScatteredBytes([b"\0\0\0\x05fi", memoryview(b"rst")])
    assert frames_of([scattered, bytearray(b"\0\0\0\x06"), memoryview(b"second")]) == [b"first", b"second"]


def test_a_length_that_promises_more_is_found() -> None:
    with pytest.raises(Violation, match="8 bytes of a response of 9"):
        frames_of([b"\0\0\0\0", ScatteredBytes([b"\0\0\0\x05", b"four"])])
