"""`mainstem doctor`: what this machine has, what it lacks, and what to install.

Each check is a function that answers one line; the command fails when one that the queue needs fails. A lack of what
only the split needs (Java, pyspark) is a warning: the queue serves without. No node is needed; one that is named by
`--http` or `--bootstrap` is asked for its health, and then it must be well."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from mainstem.address import parsed
from mainstem.cli import listening, security_checks
from mainstem.cli.check import Check, CheckState
from mainstem.cli.errors import CommandLineError
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import counted, print_json, print_table, size
from mainstem.errors import ConfigError
from mainstem.model import NodeRole

if TYPE_CHECKING:
    from mainstem.console.views.of_cluster import ClusterView
    from mainstem.node.config import NodeConfig

PYTHON_MIN = (3, 11)
OPEN_FILES_WANTED = 65_536
"""One per connection, and some hundreds for segments and runs; the default of many systems is 1,024."""
FREE_BYTES_WANTED = 10 * 1024**3
"""A filled journal pool takes 1 GiB; less than ten times that and produce is soon slowed down."""


PROBE_RETRY_SECONDS = 5.0
"""An object store that is down is not waited for as long as a node would."""


@click.command("doctor")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="Check the disks and ports of this file. Default: mainstem.toml, if there is one.",
)
@options.both_if_named(
    bootstrap_help="Also check that Kafka clients reach a node there.",
    http_help="Also check the node whose HTTP port is there.",
)
@options.as_json
def command(file: Path | None, http: str | None, bootstrap: str | None, as_json: bool) -> int:
    """Check what this machine has and lacks, and a node's health if one is named.

    The exit code is 1 when something fails that a node cannot do without. Warnings are advice.
    """
    from mainstem.node.config_sources import load

    config = load(file=file, environment=os.environ, flags={})
    checks = list(_checks(config, at_home=http is None and bootstrap is None))
    if http is not None:
        checks += node_health(http)
    if bootstrap is not None:
        checks.append(kafka_answers(bootstrap))
    failed = any(check.state is CheckState.FAILED for check in checks)
    if as_json:
        rows = [check._asdict() | {"advice": check.advice or None} for check in checks]
        print_json({"ok": not failed, "checks": rows})
    else:
        print_table(["STATE", "CHECK", "~FOUND, AND WHAT TO DO"], map(_row, checks), empty="nothing to check")
    return 1 if failed else 0


def _row(check: Check) -> tuple[str, str, str]:
    """The advice stands below what was found, for terminals are narrow."""
    return check.state.value, check.name, "\n→ ".join(filter(None, (check.found or "nothing", check.advice)))


def _checks(config: NodeConfig, *, at_home: bool) -> Iterator[Check]:
    """`at_home`: whether a node is still to be started here, so that its ports should be free."""
    yield python()
    yield operating_system()
    yield kernel()
    yield event_loop()
    yield java()
    yield pyspark()
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE))
    yield disk("disk 1", Path(config.write_dir).expanduser())
    stores, serves = config.has_role(NodeRole.STORAGE), config.has_role(NodeRole.BROKER)
    if not (stores and serves):
        yield Check("roles", CheckState.OK, f"{', '.join(config.roles)} only")
    if stores and not config.shares_store:
        store_dir = Path(config.store_dir.removeprefix("file://")).expanduser()
        yield disk("disk 2", store_dir)
        yield apart(Path(config.write_dir).expanduser(), store_dir)
    yield from machine(config)
    yield from security_checks.checks(config)
    if stores and config.objects_url:
        yield objects("shared store" if config.shares_store else "remote tier", config)
    if not at_home:
        return
    if not config.processes:
        yield from _ports(config, "")
        return
    from mainstem.cli.processes.layout import node_configs

    try:
        configs = node_configs(config)
    except ConfigError as error:
        yield Check("processes", CheckState.FAILED, str(error), "correct the configuration")
        return
    for one in configs:
        yield from _ports(one, f"node {one.node_id}: ")


def _ports(config: NodeConfig, node: str) -> Iterator[Check]:
    serves = config.has_role(NodeRole.BROKER)
    for name, address in (
        *(("kafka port", address) for address in config.listen if serves),
        *((f"port of listener {name}", each.listen) for name, each in config.server.listeners.items() if serves),
        ("http port", config.http),
        ("rpc port", config.rpc),
    ):
        yield port(node + name, address)


def machine(config: NodeConfig) -> Iterator[Check]:
    """The machine, where nodes share it, and how many of them `serve` would run."""
    if not config.processes:
        if config.machine:
            yield Check("machine", CheckState.OK, f"{config.machine}, which the node may share with others")
        return
    from mainstem.cli.processes.layout import machine_of

    processors = len(os.sched_getaffinity(0))
    nodes = f"nodes {config.node_id} to {config.node_id + config.processes - 1}"
    found = f"{machine_of(config)}: {nodes}, {processors} processors"
    if config.processes > processors:
        advice = "more nodes than processors are slower than as many: lower processes"
        yield Check("machine", CheckState.WARNING, found, advice)
    else:
        yield Check("machine", CheckState.OK, found)


def python() -> Check:
    found = platform.python_version()
    if sys.version_info[:2] >= PYTHON_MIN:
        return Check("python", CheckState.OK, found)
    return Check("python", CheckState.FAILED, found, "install Python 3.11 or newer")


def operating_system() -> Check:
    found = f"{platform.system()} {platform.release()} {platform.machine()}"
    if platform.system() == "Linux":
        return Check("system", CheckState.OK, found)
    return Check("system", CheckState.WARNING, found, "Mainstem is made for Linux; other systems are untested")


def kernel() -> Check:
    from mainstem.kernel import KERNEL

    if KERNEL == "compiled":
        return Check("kernel", CheckState.OK, KERNEL)
    advice = "slower per message: install a C compiler (Debian: apt-get install gcc) and Mainstem again"
    return Check("kernel", CheckState.WARNING, KERNEL, advice)


def event_loop() -> Check:
    from mainstem.process.event_loop import chosen_loop

    try:
        found = chosen_loop()
    except ConfigError as error:
        return Check("event loop", CheckState.FAILED, "", str(error))
    if found == "uvloop":
        return Check("event loop", CheckState.OK, found)
    return Check("event loop", CheckState.WARNING, found, "up to a fifth slower for small requests: pip install uvloop")


def java() -> Check:
    from mainstem.pipeline.spark.java import find_java

    found = find_java()
    if found.missing:
        return Check("java", CheckState.WARNING, found.path or "none", f"nothing is split without it: {found.missing}")
    return Check("java", CheckState.OK, f"{found.version} at {found.path}")


def pyspark() -> Check:
    from mainstem.pipeline.spark.java import spark_missing

    missing = spark_missing()
    if missing:
        return Check("pyspark", CheckState.WARNING, "incomplete", f"nothing is split without it: {missing}")
    from importlib.metadata import version

    return Check("pyspark", CheckState.OK, version("pyspark"))


def open_files(limits: tuple[int, int]) -> Check:
    """`limits` are the soft and the hard limit, -1 being none."""
    soft, hard = limits
    found = f"{soft} (hard {hard})"
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_WANTED:
        return Check("open files", CheckState.OK, found)
    advice = f"with many connections: `ulimit -n {OPEN_FILES_WANTED}`, or LimitNOFILE= in the service"
    return Check("open files", CheckState.WARNING, found, advice)


def disk(name: str, directory: Path) -> Check:
    """The file system that holds, or would hold, a directory."""
    there = _nearest(directory)
    if not os.access(there, os.W_OK | os.X_OK):
        advice = "choose another directory, or change its owner"
        return Check(name, CheckState.FAILED, f"{there} is not writable", advice)
    stat = os.statvfs(there)
    free = stat.f_bavail * stat.f_frsize
    found = f"{directory.absolute()}: {size(free)} free"
    if free < FREE_BYTES_WANTED:
        return Check(name, CheckState.WARNING, found, f"less than {size(FREE_BYTES_WANTED)} are left")
    return Check(name, CheckState.OK, found)


def apart(write_dir: Path, store_dir: Path) -> Check:
    if _nearest(write_dir).stat().st_dev != _nearest(store_dir).stat().st_dev:
        return Check("two disks", CheckState.OK, "write_dir and store_dir lie on different file systems")
    advice = "for throughput put them on two disks; one is fine to try things"
    return Check("two disks", CheckState.WARNING, "write_dir and store_dir share a file system", advice)


def objects(name: str, config: NodeConfig) -> Check:
    """Whether an object store does what a node asks of one, as `mainstem store probe` finds out."""
    from mainstem.cli.store.probe import tried
    from mainstem.storage.object_stores.probing import Ability

    url = config.objects_url
    advice = f"a node starts without it, and what lies there cannot be read: mainstem store probe {url}"
    retry_seconds = min(config.object_store.retry_seconds, PROBE_RETRY_SECONDS)
    try:
        found = asyncio.run(tried(url, structs.replace(config.object_store, retry_seconds=retry_seconds)))
    except ConfigError as error:
        return Check(name, CheckState.FAILED, str(error), "correct the configuration")
    if failed := [one for one in found if one.ability is Ability.FAILED]:
        return Check(name, CheckState.FAILED, f"{url}: {failed[0].name} failed: {failed[0].found}", advice)
    return Check(name, CheckState.OK, f"{url} does what a node asks of it")


def port(name: str, address: str) -> Check:
    if reason := listening.refusal(parsed(address, port_min=0)):
        advice = "stop what listens there (a node that runs already?) or set another address"
        return Check(name, CheckState.WARNING, f"{address}: {reason}", advice)
    return Check(name, CheckState.OK, f"{address} is free")


def node_health(address: str) -> Iterator[Check]:
    """Whether the node whose HTTP answers at `address` is ready, how its disks stand, and its splitter."""
    from mainstem.cli.clients.http_node import HttpNode
    from mainstem.console.views.of_cluster import ClusterView
    from mainstem.console.views.of_split import SplitView

    node = HttpNode(address)
    try:
        reason = node.not_ready()
        cluster = node.get("/v1/cluster", ClusterView)
        split = node.get("/v1/split", SplitView)
    except CommandLineError as error:
        yield Check("node", CheckState.FAILED, str(error), "start the node, or name another address")
        return
    found = f"{address}, cluster {cluster.cluster_id}"
    if reason is None:
        yield Check("node", CheckState.OK, f"{found}: ready")
    else:
        yield Check("node", CheckState.FAILED, f"{found}: {reason}", "the node's log says more")
    yield from machines(cluster)
    lag = sum(group.lag_bytes for group in split.groups.values())
    lagging = f"{split.splitter.removesuffix('.')}; {size(lag)} to be split"
    if split.splitter.startswith(("unavailable", "failed", "restarting")):
        yield Check("splitter", CheckState.WARNING, lagging, "`mainstem split status` says more")
    else:
        yield Check("splitter", CheckState.OK, lagging)


def machines(cluster: ClusterView) -> Iterator[Check]:
    """The machines that nodes share, and those whose replicas of a write group fail together."""
    from mainstem.cli.cluster.status import crowded

    lines = crowded(cluster)
    for line in lines:
        yield Check("machines", CheckState.WARNING, *line.split(": ", 1))
    nodes = Counter(node.machine for node in cluster.nodes if node.machine)
    if nodes and not lines:
        counts = ", ".join(f"{label} ({counted(count, 'node')})" for label, count in sorted(nodes.items()))
        yield Check("machines", CheckState.OK, f"{counts}; none has two replicas of a write group")


def kafka_answers(address: str) -> Check:
    """Whether a Kafka client gets an answer at `address`, and from where it is told to come back."""
    from mainstem.cli.clients import kafka_node

    try:
        brokers = kafka_node.advertised(kafka_node.admin(address))
    except CommandLineError as error:
        return Check("kafka", CheckState.FAILED, str(error), "start the node, or name another address")
    return Check("kafka", CheckState.OK, f"{address} answers; clients are sent to {', '.join(brokers)}")


def _nearest(directory: Path) -> Path:
    """The directory itself or the nearest parent that exists."""
    path = directory.absolute()
    while not path.exists():
        path = path.parent
    return path
