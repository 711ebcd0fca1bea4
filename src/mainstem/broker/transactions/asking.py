"""Requests of Kafka's APIs between the nodes of a cluster: how a node reaches a coordinator that another one is."""

from __future__ import annotations

from typing import Any

from mainstem.ports import BrokerCalls
from mainstem.protocol import codec
from mainstem.protocol.messages import API_MESSAGES


async def ask(calls: BrokerCalls, node_id: int, request: Any, version: int, answer: type[Any] | None = None) -> Any:
    """The response of a node's broker, read as Kafka's, or as an `answer` that has more. Raises `MainstemError` where
    there is none."""
    api = next(api for api in API_MESSAGES.values() if api.request is type(request))
    body = await calls.ask(node_id, api.api_key, version, codec.write(request, version))
    return codec.read(answer or api.response, version, body)
