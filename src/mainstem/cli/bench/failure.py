"""The line that a run ends with when not all of its records were acknowledged."""

from __future__ import annotations

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from mainstem.cli import kafka_node
from mainstem.cli.bench.interruption import Interruption
from mainstem.cli.bench.tally import SILENCE_SECONDS_MAX, Tally

_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)
"""The second is what some nodes answer to a batch above the limit."""


def failure_of(tally: Tally, interruption: Interruption, admin: AdminClient, topic: str) -> str | None:
    """What went wrong; None where nothing did. A second Ctrl-C leaves records unanswered, and that is no failure.

    The topic must still be there: it is asked for its limit where records were too large for it."""
    if tally.failed:
        error = tally.first_error
        what = f"{tally.failed} of {tally.sent} records were not acknowledged; the first: {error.str()}"
        limit = kafka_node.topic_config(admin, topic, "max.message.bytes") if error.code() in _TOO_LARGE else None
        return what if limit is None else f"{what}; max.message.bytes of {topic} is {limit}"
    if tally.in_flight and not interruption.came_twice:
        return f"{tally.in_flight} of {tally.sent} records were not answered within {SILENCE_SECONDS_MAX:.0f} s"
    return None
