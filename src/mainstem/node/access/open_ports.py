"""Ports of a node that hosts beyond this one reach without showing who they are, as far as the configuration tells.

A node does not start with such a port unless `allow_open` names its kind: a cluster that strangers may read, change or
join should be somebody's decision, not what is left when nobody decided.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from mainstem.address import is_loopback, parsed
from mainstem.errors import ConfigError
from mainstem.model import NodeRole
from mainstem.node.config import NodeConfig, PortKind

log = logging.getLogger(__name__)


class OpenPort(NamedTuple):
    """A port that anybody who reaches it may use."""

    kind: PortKind
    key: str
    """The configuration key that opens it."""
    address: str
    danger: str
    """The powers of everybody who reaches it."""
    remedy: str


def open_ports(config: NodeConfig) -> Iterator[OpenPort]:
    """All of them, those that `allow_open` names included."""
    if config.has_role(NodeRole.BROKER) and not _anonymous_may_little(config):
        for key, address, remedy in _without_authentication(config):
            if _is_reached(address):
                yield OpenPort(PortKind.KAFKA, key, address, "read, write and delete all topics", remedy)
    if not config.console.users and _is_reached(config.http):
        danger = "read the names of topics, consumer groups and nodes, and all metrics"
        yield OpenPort(PortKind.HTTP, "http", config.http, danger, "set console.users, and console.certificate with it")
    if not config.rpc_tls.enabled and _is_reached(config.rpc):
        danger = "act as a node: change and delete everything that this cluster holds"
        yield OpenPort(PortKind.RPC, "rpc", config.rpc, danger, "set rpc_tls (`mainstem cert` makes what it needs)")


def refuse_open_ports(config: NodeConfig) -> None:
    """Raise ConfigError that names each open port which nobody has allowed; those that somebody has are logged."""
    refused = []
    for port in open_ports(config):
        told = f"{port.key} = {port.address}: whoever reaches it may {port.danger}"
        if port.kind in config.allow_open:
            log.warning("%s (allow_open)", told)
        else:
            refused.append((port.kind, f"{told}; {port.remedy}"))
    if refused:
        kinds = ",".join(dict.fromkeys(kind for kind, _ in refused))
        raise ConfigError(
            "the node would listen beyond this host without asking anybody who they are:\n  "
            + "\n  ".join(line for _, line in refused)
            + f"\nWhere a network keeps strangers away, --allow-open {kinds} starts it all the same"
        )


def _anonymous_may_little(config: NodeConfig) -> bool:
    """Whether clients that do not show who they are may do only what rules allow them by name."""
    return config.authorizer.enabled and not config.authorizer.allow_everyone_if_no_acl_found


def _without_authentication(config: NodeConfig) -> Iterator[tuple[str, str, str]]:
    """The listeners of the Kafka port that ask nobody: key, address, remedy."""
    sasl = "give it SASL (protocol SASL_SSL under server.listeners)"
    for address in config.listen:
        yield "listen", address, sasl
    for address in config.server.bootstrap_listen:
        yield "server.bootstrap_listen", address, sasl
    for name, listener in config.server.listeners.items():
        if listener.protocol.startswith("SASL"):
            continue
        key = f"server.listeners.{name}"
        for inner, address in (("listen", listener.listen), ("bootstrap_listen", listener.bootstrap_listen)):
            if not address:
                continue
            if not listener.over_tls:
                yield f"{key}.{inner}", address, sasl
            elif listener.client_auth != "required":
                yield f"{key}.{inner}", address, f"{sasl}, or set {key}.client_auth = required"


def _is_reached(address: str) -> bool:
    return not is_loopback(parsed(address, port_min=0).host)
