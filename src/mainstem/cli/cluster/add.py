"""`mainstem cluster add`"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path

import click

from mainstem.address import PORT_MAX, Address, AddressError, is_loopback, parsed
from mainstem.cli import listening
from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json
from mainstem.console.views.of_cluster import ClusterView
from mainstem.model import NodeRole
from mainstem.whole_file import write_whole

ADDRESSES = ("kafka", "http", "rpc")


@click.command("add")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--node-id", type=click.IntRange(min=1), help="The new node's id. Default: one that no node had.")
@click.option("--kafka", metavar="HOST:PORT", help="Where the new node listens for Kafka clients.")
@click.option("--node-http", metavar="HOST:PORT", help="Where it listens for HTTP.")
@click.option("--rpc", metavar="HOST:PORT", help="Where it listens for other nodes.")
@click.option("--roles", metavar="ROLE,…", help="Some of broker, storage, nameserver. Default: all.")
@click.option("--rack", help="The rack that it stands in.")
@options.http_only
@options.as_json
def command(
    http: str,
    directory: Path,
    node_id: int | None,
    kafka: str | None,
    node_http: str | None,
    rpc: str | None,
    roles: str | None,
    rack: str | None,
    as_json: bool,
) -> None:
    """Prepare a node in DIRECTORY that joins the cluster when it is started.

    The command asks the cluster who is there, writes DIRECTORY/mainstem.toml, and prints how to start the node. Its
    disks are DIRECTORY/write and DIRECTORY/store, unless the cluster shares a store. On a cluster of this machine alone
    its ports are those above the cluster's highest, without such at which something listens; elsewhere name all three
    addresses. Add to the file what other nodes have besides, as certificates for node RPC.

    The node joins by itself, and holds nothing until `cluster rebalance`, `cluster drain` or `cluster replace` gives
    it something. It has no part in the cluster before it is started.
    """
    view = HttpNode(http).get("/v1/cluster", ClusterView)
    file = directory.absolute() / "mainstem.toml"
    if file.exists():
        raise RequestRefused(f"{file} is there already; a new node takes a directory of its own")
    number = node_id if node_id is not None else view.next_node_id
    if any(node.node_id == number for node in view.nodes):
        raise RequestRefused(f"node {number} is part of the cluster already; a new node takes an id of its own")
    given = {"kafka": _checked(kafka), "http": _checked(node_http), "rpc": _checked(rpc)}
    missing = [name for name, address in given.items() if address is None]
    given |= _beside(view, missing)
    peers = {str(node.node_id): node.rpc for node in view.nodes if _may_be_asked(view, node.node_id)}
    if not peers:
        raise RequestRefused("no node with the role nameserver is alive: nobody could let a new node in")
    lines = [
        f"node_id = {number}",
        f"listen = [{_quoted(given['kafka'])}]",
        f"http = {_quoted(given['http'])}",
        f"rpc = {_quoted(given['rpc'])}",
        f"write_dir = {_quoted(directory.absolute() / 'write')}",
        f"store_dir = {_quoted(view.shared_store or directory.absolute() / 'store')}",
        f"shared_store = {'true' if view.shared_store else 'false'}",
        *([f"roles = {json.dumps(_roles(roles))}"] if roles else []),
        *([f"rack = {_quoted(rack)}"] if rack else []),
        "",
        "[nameserver.peers]",
        *(f"{peer} = {_quoted(address)}" for peer, address in sorted(peers.items(), key=lambda it: int(it[0]))),
        "",
    ]
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(file, "\n".join(lines).encode(), 0o644)
    start = f"mainstem serve --config {shlex.quote(str(file))}"
    if as_json:
        told = {name: str(given[name]) for name in ADDRESSES}
        print_json({"node": number, "file": str(file), "start": start, **told})
        return
    click.echo(f"node {number} is prepared: {file}")
    click.echo(f"start it with: {start}")
    click.echo("then give it something to hold: mainstem cluster rebalance --dry-run")


def _checked(text: str | None) -> Address | None:
    """Raises click.UsageError."""
    try:
        return parsed(text) if text is not None else None
    except AddressError as error:
        raise click.UsageError(str(error)) from None


def _roles(text: str) -> list[str]:
    """Raises click.UsageError."""
    known = [str(role.value) for role in NodeRole]
    roles = [role.strip() for role in text.split(",")]
    for role in roles:
        if role not in known:
            raise click.UsageError(f"--roles: {role!r} is not a role; expected {', '.join(known)}, with commas")
    return roles


def _may_be_asked(view: ClusterView, node_id: int) -> bool:
    """Whether a node can let others in: it lives and has the metadata."""
    (node,) = [node for node in view.nodes if node.node_id == node_id]
    return node.rpc is not None and node.state != "dead" and NodeRole.NAMESERVER.value in node.roles


def _beside(view: ClusterView, missing: Iterable[str]) -> dict[str, Address | None]:
    """Addresses above those of the cluster. A node that was removed, and runs on, keeps its own. Raises RequestRefused
    where the nodes are not on this machine."""
    found: dict[str, Address | None] = {}
    used = {
        "kafka": [Address(node.host, node.port) for node in view.nodes],
        "http": [parsed(node.http) for node in view.nodes if node.http],
        "rpc": [parsed(node.rpc) for node in view.nodes if node.rpc],
    }
    options_of = {"kafka": "--kafka", "http": "--node-http", "rpc": "--rpc"}
    taken = {address.port for addresses in used.values() for address in addresses}
    for name in missing:
        addresses = [address for address in used[name] if address.port]
        if not addresses or not all(is_loopback(address.host) for address in addresses):
            raise RequestRefused(f"the cluster is not on this machine alone: name the address with {options_of[name]}")
        highest = max(addresses, key=lambda address: address.port)
        untold = len(view.nodes) - len(addresses)  # of HTTP where a node is dead, of Kafka where it has no broker
        above = (
            Address(highest.host, port) for port in range(highest.port + untold + 1, PORT_MAX + 1) if port not in taken
        )
        chosen = next((address for address in above if not listening.refusal(address)), None)
        if chosen is None:
            raise RequestRefused(f"there is no free port above {highest}: name the address with {options_of[name]}")
        taken.add(chosen.port)
        found[name] = chosen
    return found


def _quoted(value: object) -> str:
    """A text of TOML, whose basic strings take JSON's escapes."""
    return json.dumps(str(value))
