"""On which event loops the tests over real sockets run."""

from __future__ import annotations

import pytest

from mainstem.process.event_loop import LOOP_VARIABLE


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_of_the_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOOP_VARIABLE, request.param)
