"""For which client a node asks another one, said beside the request. Nodes of the version before send nothing and skip
what they get."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.model import ForwardedClient

TEXT_LENGTH_MAX = 1_024
"""Of a principal: subjects of certificates are the longest."""


class ClientTold(msgspec.Struct, frozen=True, array_like=True):
    """`model.ForwardedClient`."""

    principal: Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)]
    host: Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)]
    judged_at: int


CLIENTS_MAX = 1_000
"""Clients that one message is about, some 40 KB."""


class ClientTook(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of batches that a client got from its node, which had been told of them before."""

    principal: Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)]
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


def client_told(client: ForwardedClient | None) -> ClientTold | None:
    if client is None:
        return None
    return ClientTold(client.principal[:TEXT_LENGTH_MAX], client.host[:TEXT_LENGTH_MAX], client.judged_at)


def client_of(told: ClientTold | None) -> ForwardedClient | None:
    return None if told is None else ForwardedClient(told.principal, told.host, told.judged_at)
