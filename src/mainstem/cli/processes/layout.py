"""The configurations of the nodes of one machine, made of one: `processes = N` of them, numbered from `node_id` on.

Each node has ports of its own, which count up from those of the configuration, and directories of its own below
`write_dir` and `store_dir`, which are named by the node's number. All of them have the label of the machine.

A cluster's id follows from its first voters. So a machine that is a cluster of its own notes in `write_dir` how many
these were, and keeps to that when it is given more nodes, or fewer.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from mainstem.address import Address, parsed
from mainstem.errors import ConfigError
from mainstem.model import NodeRole
from mainstem.nameserver.config import NameserverConfig
from mainstem.node.config import NodeConfig
from mainstem.server.addresses import parse_address
from mainstem.server.config import ServerConfig
from mainstem.whole_file import write_whole

VOTERS = 3
"""Nodes of a machine alone that vote on its metadata: with three one may be away, and more make each change slower."""

VOTERS_NAME = "first_voters"

NODE_ID = "{node_id}"
"""Stands in paths of files that each node has of its own."""

_WILDCARDS = ("0.0.0.0", "::", "")


class _Port(NamedTuple):
    node_id: int
    key: str
    host: str
    port: int


def node_configs(config: NodeConfig) -> list[NodeConfig]:
    """The configuration of each node. Raises ConfigError naming the node, and where two would have the same port."""
    configs = [node_config(config, index) for index in range(config.processes)]
    _refuse_clashes([port for each in configs for port in _ports_of(each)], config.processes)
    return configs


def node_config(config: NodeConfig, index: int) -> NodeConfig:
    """The configuration of one node, the first being number 0. Raises ConfigError naming it."""
    node_id = config.node_id + index
    try:
        made = _of_node(config, node_id, index)
        made.validate()
        made.server.validate()
        made.nameserver.validate()
    except ConfigError as error:
        raise ConfigError(f"node {node_id} of processes = {config.processes}: {error}") from None
    return made


def note_voters(config: NodeConfig) -> None:
    """Note the first voters of a machine that is a cluster of its own, before its nodes start. Raises OSError."""
    file = _voters_file(config)
    if not config.nameserver.peers and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, f"{_voters(config)}\n".encode(), 0o644)


def machine_of(config: NodeConfig) -> str:
    return config.machine or socket.gethostname()


def _of_node(config: NodeConfig, node_id: int, index: int) -> NodeConfig:
    own = f"node-{node_id}"
    listen = tuple(_moved(address, index) for address in config.listen)
    files = {"certificate": NODE_ID, "key": NODE_ID}
    return structs.replace(
        config,
        processes=0,
        node_id=node_id,
        machine=machine_of(config),
        listen=listen,
        http=_moved(config.http, index),
        rpc=_moved(config.rpc, index),
        write_dir=str(Path(config.write_dir) / own),
        store_dir=config.store_dir if config.shares_store else str(Path(_directory(config.store_dir)) / own),
        server=_server(config.server, listen, node_id, index),
        nameserver=_nameserver(config, node_id),
        rpc_tls=structs.replace(
            config.rpc_tls, **{key: _named(getattr(config.rpc_tls, key), node_id) for key in files}
        ),
        console=structs.replace(
            config.console, **{key: _named(getattr(config.console, key), node_id) for key in files}
        ),
        audit=structs.replace(config.audit, file=_named(config.audit.file, node_id)),
    )


def _server(server: ServerConfig, listen: tuple[str, ...], node_id: int, index: int) -> ServerConfig:
    listeners = {
        name: structs.replace(
            listener,
            listen=_moved(listener.listen, index),
            advertise=None if listener.advertise is None else _moved(listener.advertise, index),
            certificate=_named(listener.certificate, node_id),
            key=_named(listener.key, node_id),
        )
        for name, listener in server.listeners.items()
    }
    advertise = None if server.advertise is None else _moved(server.advertise, index)
    return structs.replace(server, listen=listen, advertise=advertise, listeners=listeners)


def _nameserver(config: NodeConfig, node_id: int) -> NameserverConfig:
    """A new cluster waits for all nodes of the machine, and each leads a write group at least."""
    nameserver, processes = config.nameserver, config.processes
    wanted = nameserver.storage_nodes_min
    if config.has_role(NodeRole.STORAGE):
        wanted = max(wanted, processes)
    return structs.replace(
        nameserver,
        node_id=node_id,
        peers=nameserver.peers or _peers(config),
        storage_nodes_min=wanted,
        write_groups=max(nameserver.write_groups, wanted),
    )


def _peers(config: NodeConfig) -> dict[str, str]:
    """The voters of a machine that is a cluster of its own. A number that is even is no better than one less."""
    rpc = parsed(config.rpc, port_min=0)
    if not rpc.port:
        raise ConfigError("rpc has port 0: nodes find each other at fixed ports")
    local = Address("127.0.0.1", rpc.port) if rpc.host in _WILDCARDS else rpc
    return {str(config.node_id + index): _moved(str(local), index) for index in range(_voters(config))}


def _voters(config: NodeConfig) -> int:
    """Those that the cluster began with, or that a new one begins with. Raises ConfigError."""
    file = _voters_file(config)
    try:
        return int(file.read_text())
    except FileNotFoundError:
        return VOTERS if config.processes >= VOTERS else 1
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file}: {error}; it holds the number of the first voters, or name nameserver.peers"
        ) from None


def _voters_file(config: NodeConfig) -> Path:
    return Path(config.write_dir).expanduser() / VOTERS_NAME


def _moved(address: str, index: int) -> str:
    """The address with its port so much higher; port 0 stays, which picks a free one."""
    where = parse_address(address)
    if not where.port:
        return address
    if where.port + index > 65_535:
        raise ConfigError(f"{address}: there is no port {where.port + index}")
    return str(Address(where.host, where.port + index))


def _named(path: str, node_id: int) -> str:
    return path.replace(NODE_ID, str(node_id))


def _directory(store_dir: str) -> str:
    return store_dir.removeprefix("file://")


def _ports_of(config: NodeConfig) -> Iterator[_Port]:
    addresses = [
        *(("listen", address) for address in config.listen),
        *((f"server.listeners.{name}.listen", listener.listen) for name, listener in config.server.listeners.items()),
        ("http", config.http),
        ("rpc", config.rpc),
    ]
    for key, address in addresses:
        where = parse_address(address)
        yield _Port(config.node_id, key, where.host, where.port)
    shared = [
        *(("server.bootstrap_listen", address) for address in config.server.bootstrap_listen),
        *(
            (f"server.listeners.{name}.bootstrap_listen", listener.bootstrap_listen)
            for name, listener in config.server.listeners.items()
            if listener.bootstrap_listen
        ),
    ]
    for key, address in shared:
        where = parse_address(address)
        yield _Port(0, key, where.host, where.port)


def _refuse_clashes(ports: list[_Port], processes: int) -> None:
    """Node 0: an address that all nodes share."""
    seen: dict[int, list[_Port]] = {}
    for one in ports:
        for other in seen.get(one.port, []):
            same = one.host == other.host or one.host in _WILDCARDS or other.host in _WILDCARDS
            if same and not (one.node_id == other.node_id == 0 and one.key == other.key):
                raise ConfigError(
                    f"{_of(one)} and {_of(other)} would both have port {one.port}: with processes = {processes} the "
                    f"ports of listen, http and rpc count up from node to node, so leave {processes} of each free, for "
                    "example with --rpc 127.0.0.1:9193 --http 127.0.0.1:9293"
                )
        if one.port:
            seen.setdefault(one.port, []).append(one)


def _of(port: _Port) -> str:
    return f"{port.key} of node {port.node_id}" if port.node_id else port.key
