"""`mainstem dev cluster`: several nodes on this machine, each a process of its own, until Ctrl-C.

Each node has its directory below `--dir`, with its configuration and its log. A node that ends by itself or is killed
is told about and stays down until `mainstem serve --config DIR/node-N/mainstem.toml` starts it again (from
anywhere), so that failures can be played; `--restart` starts it again at once.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mainstem.cli.clients.client_settings import HttpAddress
from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.processes.node_process import NodeProcess, how_it_ended
from mainstem.errors import MainstemError
from mainstem.security.certificates.library import require_cryptography
from mainstem.storage.object_stores.urls import parsed_url

if TYPE_CHECKING:
    from mainstem.cli.dev.secured import SecuredCluster

NODES_MAX = 15
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
POLL_SECONDS = 0.1
RESTART_SECONDS = 1.0
PORTS_PER_KIND = 100
"""Kafka ports count from `--port`, HTTP ports from 100 above it, node RPC from 200 above."""


class ClusterFailed(MainstemError):
    """A node of the development cluster did not start."""


class DevNode(NodeProcess):
    """One node: its files, its addresses, and its process while it has one."""

    def __init__(
        self,
        directory: Path,
        node_id: int,
        port: int,
        nodes: int,
        settings: tuple[str, ...],
        store: str | None = None,
        secured: SecuredCluster | None = None,
        roles: tuple[str, ...] = (),
    ) -> None:
        """`nodes`: how many vote on the metadata. `store`: the shared store, a URL or an absolute directory; None: each
        node has a disk 2 of its own. `secured`: the cluster's certificates and its first user; None: whoever reaches a
        port is let in. `roles` empty: all of them."""
        self.directory = directory / f"node-{node_id}"
        self._file = self.directory / "mainstem.toml"
        super().__init__(node_id, ["--config", str(self._file), *(it for key in settings for it in ("--set", key))])
        self.kafka = f"127.0.0.1:{port + node_id}"
        http = f"127.0.0.1:{port + PORTS_PER_KIND + node_id}"
        self.http = HttpAddress(http, {}) if secured is None else secured.http(http)
        self.log = self.directory / "log"
        self.serves_clients = not roles or "broker" in roles
        self._configuration = "\n".join(
            [
                f"node_id = {node_id}",
                f'listen = ["{self.kafka}"]' if secured is None else "listen = []",
                f'http = "{self.http}"',
                f'rpc = "127.0.0.1:{port + 2 * PORTS_PER_KIND + node_id}"',
                f'write_dir = "{self.directory / "write"}"',
                f'store_dir = "{store or self.directory / "store"}"',
                f"shared_store = {'true' if store else 'false'}",
                *([f"roles = {json.dumps(roles)}"] if roles else []),
                "",
                "[nameserver.peers]",
                *(f'{one} = "127.0.0.1:{port + 2 * PORTS_PER_KIND + one}"' for one in range(1, nodes + 1)),
                *([] if secured is None else secured.configuration(node_id, self.kafka)),
                "",
            ]
        )

    def begin(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._file.write_text(self._configuration)
        with self.log.open("ab") as log:
            self.start(log, subprocess.STDOUT)

    def wait_ready(self, deadline: float) -> None:
        """Raises `ClusterFailed`."""
        while True:
            if (code := self.ended()) is not None:
                raise ClusterFailed(f"node {self.node_id} ended with {how_it_ended(code)}: {self._last_words()}")
            try:
                reason = HttpNode(self.http).not_ready()
            except MainstemError as error:
                reason = str(error)
            if reason is None:
                return
            if time.monotonic() >= deadline:
                raise ClusterFailed(
                    f"node {self.node_id} is not ready after {START_SECONDS_MAX:.0f} s: {reason}; its log is {self.log}"
                )
            time.sleep(POLL_SECONDS)

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'it said nothing'} (log: {self.log})"


@click.command("cluster")
@click.argument("nodes", type=click.IntRange(1, NODES_MAX), default=3)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("dev-cluster"),
    show_default=True,
    help="Keep the nodes' directories here; they stay when the cluster stops.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65000),
    metavar="N",
    default=9091,
    show_default=True,
    help="Listen for Kafka clients at this port + 1, + 2, …; HTTP 100 above them, node RPC 200 above.",
)
@click.option(
    "--store-dir",
    "store",
    metavar="DIR|URL",
    help="Have all nodes share one queue store: a directory, or the URL of an object store. Default: each has its own.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="TLS, a first user with a password, access rules; make files with what clients connect with.",
)
@click.option(
    "--brokers",
    type=click.IntRange(0, NODES_MAX),
    default=0,
    metavar="N",
    help="Run N brokers without storage as well, numbered behind the others, which then serve no clients themselves.",
)
@click.option("--restart", is_flag=True, help="Start a node again that has ended.")
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set any key of the configuration, for all nodes; repeatable.",
)
def command(
    nodes: int,
    directory: Path,
    port: int,
    store: str | None,
    secure: bool,
    brokers: int,
    restart: bool,
    settings: tuple[str, ...],
) -> None:
    """Run a cluster of NODES nodes (default 3) on this machine until Ctrl-C."""
    place = _shared(store) if store is not None else None
    secured = _secured(directory.absolute(), nodes + brokers) if secure else None
    stores = ("storage", "nameserver") if brokers else ()
    roles = dict.fromkeys(range(1, nodes + 1), stores) | dict.fromkeys(
        range(nodes + 1, nodes + brokers + 1), ("broker",)
    )
    cluster = [
        DevNode(directory.absolute(), node_id, port, nodes, settings, place, secured, roles[node_id])
        for node_id in roles
    ]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for node in cluster:
            node.begin()
        deadline = time.monotonic() + START_SECONDS_MAX
        for node in cluster:
            node.wait_ready(deadline)
        if secured is not None:
            secured.write_client_settings([node.kafka for node in cluster if node.serves_clients], cluster[0].http)
        _tell(cluster, secured)
        _watch(cluster, restart=restart)
    except KeyboardInterrupt:
        click.echo("stopping")
    finally:
        for node in cluster:
            node.stop()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for node in cluster:
            node.wait_stopped(deadline)


def _shared(store: str) -> str:
    """The same store for nodes in other working directories; a directory is made if missing. Raises ConfigError."""
    url = parsed_url(store).absolute()
    if url.scheme == "file":
        Path(url.path).mkdir(parents=True, exist_ok=True)
    return str(url)


def _secured(directory: Path, nodes: int) -> SecuredCluster:
    """Raises CertificateError, OSError."""
    require_cryptography()
    from mainstem.cli.dev.secured import SecuredCluster

    directory.mkdir(parents=True, exist_ok=True)
    return SecuredCluster(directory, nodes, datetime.now(UTC).replace(microsecond=0))


def _tell(cluster: list[DevNode], secured: SecuredCluster | None) -> None:
    for node in cluster:
        process = node.process.pid if node.process is not None else "-"
        kafka = node.kafka if node.serves_clients else "none"
        click.echo(f"node {node.node_id}: kafka {kafka}, http {node.http}, pid {process}, log {node.log}")
    first = cluster[0]
    brokers = [node for node in cluster if node.serves_clients]
    addresses = ",".join(node.kafka for node in brokers)
    if secured is None:
        lines = [
            f"mainstem cluster status --http {first.http}",
            f"mainstem topic create hello --partitions 6 --bootstrap {brokers[0].kafka}",
            f"kcat -b {addresses} -L",
        ]
    else:
        lines = [
            f"export MAINSTEM_PROFILES={shlex.quote(str(secured.profiles))}",
            "mainstem cluster status",
            "mainstem topic create hello --partitions 6",
            f"kcat -F {shlex.quote(str(secured.client_properties))} -L",
            f"kafka-topics.sh --bootstrap-server {addresses} --command-config "
            f"{shlex.quote(str(secured.java_properties))} --list",
        ]
    dying = brokers[0]
    lines.append(f"kill -9 {dying.process.pid if dying.process else '…'}    # node {dying.node_id}; the others go on")
    if secured is not None:
        click.echo(f"\nclients connect with these settings ({secured.client_properties}):\n")
        click.echo(secured.client_properties.read_text(), nl=False)
    click.echo("\nready. Try:\n" + "".join(f"  {line}\n" for line in lines))
    sys.stdout.flush()


def _watch(cluster: list[DevNode], *, restart: bool) -> None:
    """Tell of nodes that end, until interrupted."""
    while True:
        for node in cluster:
            code = node.ended()
            if code is None:
                continue
            again = f"mainstem serve --config {os.path.relpath(node.directory / 'mainstem.toml')}"
            click.echo(
                f"node {node.node_id} ended with {how_it_ended(code)}; "
                + ("it is started again" if restart else f"start it again with: {again}")
            )
            if restart:
                time.sleep(RESTART_SECONDS)
                node.begin()
        time.sleep(POLL_SECONDS)
