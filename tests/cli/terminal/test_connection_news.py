"""The news of a node that goes away and comes back."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from mainstem.cli.terminal.connection_news import ConnectionNews


def test_a_loss_and_a_return_are_told_once_each(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    news = ConnectionNews("h:1", monotonic=lambda: now)
    news.is_back()
    news.on_error(KafkaError(KafkaError._TRANSPORT))
    assert news.lost_for() == 0
    news.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    now = 107.0
    news.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert news.lost_for() == 7
    news.is_back()
    news.is_back()
    assert news.lost_for() == 0
    assert capsys.readouterr().err.splitlines() == [
        "mainstem: lost the node at h:1; trying again",
        "mainstem: the node at h:1 is back",
    ]
