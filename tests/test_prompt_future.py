"""Futures that tell at once: in order, once, whatever those who listen do."""

from __future__ import annotations

import asyncio
import logging

import pytest

from mainstem.prompt_future import PromptFuture


def test_listeners_are_told_in_order_before_set_result_returns() -> None:
    future: PromptFuture[int] = PromptFuture()
    told: list[str] = []
    future.add_done_callback(lambda done: told.append(f"first {done.result()}"))
    future.add_done_callback(lambda done: told.append(f"second {done.result()}"))
    future.set_result(5)
    assert told == ["first 5", "second 5"]
    future.add_done_callback(lambda done: told.append("late"))
    assert told[2:] == ["late"]


def test_a_listener_that_fails_keeps_nobody_from_being_told(caplog: pytest.LogCaptureFixture) -> None:
    future: PromptFuture[int] = PromptFuture()
    told: list[int] = []

    def broken(_: PromptFuture[int]) -> None:
        raise RuntimeError("a bug")

    future.add_done_callback(broken)
    future.add_done_callback(lambda done: told.append(done.result()))
    with caplog.at_level(logging.ERROR):
        future.set_result(1)
    assert told == [1]
    assert "a bug" in caplog.text


def test_it_is_awaited_like_any_other() -> None:
    async def story() -> None:
        future: PromptFuture[int] = PromptFuture()
        asyncio.get_running_loop().call_soon(future.set_result, 3)
        assert await future == 3
        assert await future == 3
        failed: PromptFuture[int] = PromptFuture()
        failed.set_exception(ValueError("no"))
        with pytest.raises(ValueError, match="no"):
            await failed
        given_up: PromptFuture[int] = PromptFuture()
        assert given_up.cancel()
        assert not given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            given_up.result()

    asyncio.run(story())
