"""A flood of nonsense is some lines and a count, not a full disk."""

from __future__ import annotations

import logging

import pytest
from tests.fakes.clock import FakeClock

from mainstem.bounded_log import LINES_AT_ONCE, SECONDS_PER_LINE, BoundedLog


def test_a_flood_is_some_lines_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    refusals = BoundedLog(logging.getLogger("refusals"), clock)
    for number in range(100_000):
        refusals.report(logging.WARNING, f"closing connection {number}")
    assert len(caplog.records) == LINES_AT_ONCE
    assert refusals.left_out == 100_000 - LINES_AT_ONCE
    clock.advance(SECONDS_PER_LINE)
    refusals.report(logging.WARNING, "closing connection X")
    refusals.report(logging.WARNING, "closing connection Y")
    assert len(caplog.records) == LINES_AT_ONCE + 1
    assert f"X ({100_000 - LINES_AT_ONCE} more" in caplog.records[-1].getMessage()
    assert refusals.left_out == 1


def test_texts_of_clients_are_no_formats(caplog: pytest.LogCaptureFixture) -> None:
    BoundedLog(logging.getLogger("refusals"), FakeClock()).report(logging.WARNING, "client '%s %d' sent nonsense")
    assert caplog.records[0].getMessage() == "client '%s %d' sent nonsense"
