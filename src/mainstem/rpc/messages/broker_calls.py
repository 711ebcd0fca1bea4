"""A node asks the broker of another in the words of Kafka's protocol: so do coordinators of transactions."""

from __future__ import annotations

import msgspec

from mainstem.rpc.wire.method import Method


class BrokerQuestion(msgspec.Struct, frozen=True):
    """The body of a request of one of Kafka's APIs."""

    api_key: int
    version: int
    body: bytes


class BrokerAnswer(msgspec.Struct, frozen=True):
    """The body of the response."""

    body: bytes


ASK_BROKER = Method(170, "broker.ask", BrokerQuestion, BrokerAnswer, nodes_only=True)
