"""Quotas in Kafka's words: an entity is limited, under a key, to a value per second.

An entity is a user, a client id, both together, or an IP address; each of its parts has a name, or is the default of
its kind (KIP-13, KIP-55, KIP-257, KIP-612). The key of a quota says what it limits. Kafka does not know the fourth
kind, a tenant: its quota is for all its users together, beside the quotas that each of them is under."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping

USER, CLIENT_ID, IP, TENANT = "user", "client-id", "ip", "tenant"

KINDS = (USER, CLIENT_ID, IP, TENANT)

Entity = tuple[tuple[str, str | None], ...]
"""The parts of an entity, as kind and name, sorted by kind; without a name: the default of the kind."""

PRODUCER_BYTE_RATE = "producer_byte_rate"
"""Bytes of Produce requests per second."""
CONSUMER_BYTE_RATE = "consumer_byte_rate"
"""Bytes of batches in Fetch responses per second."""
REQUEST_PERCENTAGE = "request_percentage"
"""Percent of the time of a node's event loop."""
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
"""Partitions created and deleted per second (KIP-599)."""
CONNECTION_CREATION_RATE = "connection_creation_rate"
"""New connections per second (KIP-612). Those of a tenant count when their client is known."""

OF_CLIENTS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
OF_ADDRESSES = (CONNECTION_CREATION_RATE,)
OF_TENANTS = (*OF_CLIENTS, CONNECTION_CREATION_RATE)
_WHOLE = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE})

_KEYS = {IP: OF_ADDRESSES, TENANT: OF_TENANTS}

NAME_LENGTH_MAX = 1_000
VALUE_MAX = float(2**63 - 1)


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Sorted, with addresses in their usual form. Raises ValueError naming what makes no sense."""
    found = sorted((kind, _name(kind, name)) for kind, name in _distinct(parts))
    kinds = {kind for kind, _ in found}
    if not kinds:
        raise ValueError("a quota is of a user, a client id, an ip, or a tenant: none is named")
    if len(kinds) > 1 and (alone := kinds & {IP, TENANT}):
        raise ValueError(f"a quota of {'an ip' if IP in alone else 'a tenant'} is of nothing else")
    return tuple(found)


def fault_of(entity: Entity, changes: Mapping[str, float | None]) -> str | None:
    """The senseless part of changes of an entity's quotas (None: the quota goes); None: there is none."""
    known = _KEYS.get(entity[0][0], OF_CLIENTS)
    for key, value in changes.items():
        if key not in known:
            return f"there is no quota {key[:64]!r} of {' and '.join(kind for kind, _ in entity)}; {_listed(known)}"
        if value is None:
            continue
        if not math.isfinite(value) or not 0 < value <= VALUE_MAX:
            return f"{key} = {value:g}: a quota is greater than 0"
        if key in _WHOLE and value != int(value):
            return f"{key} = {value:g}: the quota is a whole number"
    return None


def described(entity: Entity) -> str:
    """An entity in words."""
    return ", ".join(f"{kind} {'(default)' if name is None else repr(name[:64])}" for kind, name in entity)


def _distinct(parts: Iterable[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    found = list(parts)
    if len({kind for kind, _ in found}) < len(found):
        raise ValueError("the entity has two parts of one kind")
    return found


def _name(kind: str, name: str | None) -> str | None:
    if kind not in KINDS:
        raise ValueError(f"there are no quotas of {kind[:64]!r}; there are of {', '.join(KINDS)}")
    if name is None:
        return None
    if not name or len(name) > NAME_LENGTH_MAX:
        raise ValueError(f"a {kind} has 1 to {NAME_LENGTH_MAX} characters, this one {len(name)}")
    if kind != IP:
        return name
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        raise ValueError(f"{name[:64]!r} is no IP address") from None


def _listed(known: Iterable[str]) -> str:
    return f"there are {', '.join(known)}"
