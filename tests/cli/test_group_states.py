"""States of groups, as commands write them and as ListGroups does."""

from __future__ import annotations

from confluent_kafka import ConsumerGroupState

from mainstem.broker.consumer_groups.shared.share_group import ShareGroupState
from mainstem.broker.consumer_groups.streams.streams_group import StreamsGroupState
from mainstem.cli.group.coordinators import STATES


def test_every_state_of_every_kind_can_be_asked_for() -> None:
    of_clients = {state.name.lower() for state in ConsumerGroupState} - {"unknown"}
    assert of_clients <= STATES.keys(), "as describe writes them, which asks librdkafka"
    kinds = (ShareGroupState, StreamsGroupState)
    assert {state.value for kind in kinds for state in kind} <= set(STATES.values())
