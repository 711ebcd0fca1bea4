"""Requests to coordinators of consumer groups, which come and go."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from mainstem.cli.clients import kafka_node
from mainstem.cli.errors import RequestRefused


class FutureOf(Future[str]):
    """An answer: a text, or Kafka's error of that number."""

    def __init__(self, answer: str | int) -> None:
        super().__init__()
        if isinstance(answer, int):
            self.set_exception(KafkaException(KafkaError(answer)))
        else:
            self.set_result(answer)


def test_a_coordinator_that_is_about_to_start_is_asked_again_and_another_refusal_is_one() -> None:
    answers: list[str | int] = [
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        "described",
    ]
    assert kafka_node.outcome_of_coordinator(lambda: FutureOf(answers.pop(0)), "group a") == "described"
    answers = [KafkaError.NOT_COORDINATOR, KafkaError.GROUP_AUTHORIZATION_FAILED, "never asked"]
    with pytest.raises(RequestRefused, match=r"group a: .*GROUP_AUTHORIZATION_FAILED"):
        kafka_node.outcome_of_coordinator(lambda: FutureOf(answers.pop(0)), "group a")
    assert answers == ["never asked"]
