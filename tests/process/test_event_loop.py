"""Which event loop a node gets."""

from __future__ import annotations

import asyncio
import sys

import pytest

from mainstem.errors import ConfigError
from mainstem.process.event_loop import LOOP_VARIABLE, chosen_loop, new_event_loop


def test_asyncios_own_loop_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOOP_VARIABLE, "asyncio")
    loop = new_event_loop()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()


def test_without_uvloop_a_node_runs_on_asyncios_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOOP_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "uvloop", None)  # importing it fails
    assert chosen_loop() == "asyncio"
    monkeypatch.setenv(LOOP_VARIABLE, "uvloop")
    with pytest.raises(ConfigError, match="install it"):
        new_event_loop()


def test_uvloop_is_taken_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOOP_VARIABLE, raising=False)
    assert chosen_loop() == "uvloop"
    loop = new_event_loop()
    assert type(loop).__module__ == "uvloop"
    loop.close()


def test_a_choice_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOOP_VARIABLE, "trio")
    with pytest.raises(ConfigError, match="trio"):
        chosen_loop()
