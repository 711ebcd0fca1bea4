"""How fast do groups agree, and what do many of them cost? The same of Mainstem and of Kafka, in one run.

    python -m bench.groups rebalances [--members 10 100 1000] [--rounds 1] [--protocol classic]
    python -m bench.groups many [--groups 100000]
    python -m bench.groups turns [--members 1000 9990] [--groups 100000] [--kind consumer]

`rebalances`: groups of the classic protocol and of the new one (KIP-848), from the cause until every member has its
final assignment. Members are light ones of the bench's own (`players`), the same for both systems; the first row of ten
members is of librdkafka. Set alike on both sides: an empty classic group waits three seconds for more members, which is
the default of both; sessions of eleven seconds in place of 45; classic members' heartbeats every three seconds, which
is clients' default, and the nodes' own defaults otherwise: those of the new protocol every five seconds.

`many`: memory per group with a committed offset of one partition, of ten, and of those with a member; one node killed
and started again, and one of three killed: until any group gives its offset again, and until all do.

`turns`: Mainstem's coordinator alone, in this process: its event loop's longest turn at each event of large groups.

Mainstem runs on asyncio's own event loop, whose turns are timed. Prints tables; `--json FILE` writes every figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.__main__ import CACHE, SYSTEMS
from bench.groups.administration import coordinators
from bench.groups.event_turns import KINDS, event_turns
from bench.groups.librdkafka_group import librdkafka_rebalances
from bench.groups.many_groups import Figure, held, longest_turn, one_node, three_nodes
from bench.groups.rebalances import SESSION_TIMEOUT_MS, Meter, Rebalance, rebalances
from bench.machine import tuned
from bench.systems import all_systems
from bench.systems.mainstem import TURNS_TOLD
from bench.systems.system import Durability, Node, Setup

PROTOCOLS = ("classic", "consumer")
LIBRDKAFKA_MEMBERS = 10
WARM_UP_MEMBERS = 10
CONNECTIONS_MAX = "15000"
TARGET_TURN_MS = 20.0
HEAP_OF_ONE, HEAP_OF_THREE = "2g", "512m"
"""Of Kafka's JVM, with very many groups."""
SETTINGS = {
    "kafka.group.initial.rebalance.delay.ms": "3000",
    "kafka.group.consumer.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "kafka.group.consumer.min.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "groups.consumer_session_timeout_ms": str(SESSION_TIMEOUT_MS),
    "groups.group_metadata_bytes_max": "8000000",
    "kafka.message.max.bytes": "8000000",
    "server.connections_max": CONNECTIONS_MAX,
    "server.connections_per_host_max": CONNECTIONS_MAX,
    TURNS_TOLD: "yes",
}
"""Each system takes its own. A classic group keeps all of its members in one record: a megabyte, the default of both,
is too small for ten thousand."""


def started(chosen: list[str], directory: Path, nodes: int = 1, heap: str = "1g") -> dict[str, Node]:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    found: dict[str, Node] = {}
    try:
        for name, system in all_systems(CACHE).items():
            if name in chosen:
                system.prepare()
                setup = Setup(
                    directory=directory / name, cpus=cpus, cores_count=len(cpus), durability=Durability.ASYNC,
                    settings=SETTINGS, heap=heap, nodes=nodes,
                )  # fmt: skip
                found[name] = system.start(setup)
    except BaseException:
        stop(found)
        raise
    return found


def stop(nodes: Mapping[str, Node]) -> None:
    for node in nodes.values():
        node.stop()


class Row(NamedTuple):
    system: str
    protocol: str
    members: str
    round: int
    rebalance: Rebalance


async def all_rebalances(
    nodes: Mapping[str, Node], protocols: Sequence[str], sizes: list[int], rounds: int
) -> list[Row]:
    rows: list[Row] = []
    for node in nodes.values():
        await coordinators(node.address, ["warm"])
    for round_ in range(rounds + 1):  # round 0 warms up
        for protocol in protocols:
            for size in (0, *sizes) if round_ else (WARM_UP_MEMBERS,):
                for system, node in nodes.items():
                    found = await _rebalances(system, node, protocol, size, round_)
                    if round_:
                        rows += found
                        print("\n".join(map(line, found)), flush=True)
    return rows


async def _rebalances(system: str, node: Node, protocol: str, size: int, round_: int) -> list[Row]:
    """Size 0: that of librdkafka."""

    def turn_ms() -> float | None:
        turns = longest_turn(node)
        if turns and turns[0].value > TARGET_TURN_MS:
            print(f"{turns[0].what}: {turns[0].value:.1f} ms", flush=True)
        return turns[0].value if turns else None

    cpu = node.tree.cpu_seconds
    if size:
        memory = (lambda: None) if node.http is None else lambda: held(node)
        found, members = await rebalances(node.address, protocol, size, Meter(cpu, turn_ms, memory)), str(size)
    else:
        found = await librdkafka_rebalances(node.address, protocol, LIBRDKAFKA_MEMBERS, cpu)
        members = f"{LIBRDKAFKA_MEMBERS} librdkafka"
    return [Row(system, protocol, members, round_, one) for one in found]


def line(row: Row) -> str:
    one = row.rebalance
    turn = "" if one.turn_ms is None else f", longest turn {one.turn_ms:.1f} ms"
    memory = "" if one.member_bytes is None else f", {one.member_bytes / 1000:.1f} KB a member"
    return (f"{row.system:<10}{row.protocol:<10}{row.members:<15}{one.cause:<16}"
            f"{one.seconds:>9.3f} s {one.cpu_seconds:>8.2f} s CPU{turn}{memory}")  # fmt: skip


def rebalance_table(rows: Sequence[Row]) -> str:
    """Medians over the rounds, in Markdown; Kafka's CPU time divided by Mainstem's."""
    lines = [
        "| protocol | members | cause | Mainstem s | Kafka s | Mainstem CPU s | Kafka CPU s | ratio | turn ms |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key in dict.fromkeys((row.protocol, row.members, row.rebalance.cause) for row in rows):
        of: dict[str, list[Row]] = {name: [] for name in SYSTEMS}
        for row in rows:
            if (row.protocol, row.members, row.rebalance.cause) == key:
                of[row.system].append(row)
        seconds = {name: statistics.median(row.rebalance.seconds for row in of[name]) for name in of if of[name]}
        cpu = {name: statistics.median(row.rebalance.cpu_seconds for row in of[name]) for name in of if of[name]}
        ratio = f"{cpu['kafka'] / cpu['mainstem']:.1f}" if len(cpu) == len(SYSTEMS) and cpu["mainstem"] else ""
        told = [row.rebalance.turn_ms for row in of["mainstem"]]
        turn = max((turn_ms for turn_ms in told if turn_ms is not None), default=None)
        cells = [f"{seconds[name]:.2f}" if name in seconds else "" for name in SYSTEMS]
        cells += [f"{cpu[name]:.2f}" if name in cpu else "" for name in SYSTEMS]
        lines.append(f"| {' | '.join((*key, *cells, ratio, '' if turn is None else f'{turn:.1f}'))} |")
    return "\n".join(lines)


def many(chosen: list[str], directory: Path, count: int) -> dict[str, list[Figure]]:
    """One system after the other, alone on the machine."""
    found: dict[str, list[Figure]] = {}
    for name in chosen:

        def start(nodes: int, name: str = name, heap: str = HEAP_OF_ONE) -> Node:
            return started([name], directory / str(nodes), nodes, heap)[name]

        node = start(1)
        try:
            node, found[name] = asyncio.run(one_node(node, lambda start=start: start(1), count))  # type: ignore[misc]
        finally:
            node.kill()
        print("\n".join(f"{name:<10}{one.value:>12.4g} {one.unit:<9}{one.what}" for one in found[name]), flush=True)
        node = start(3, heap=HEAP_OF_THREE)
        try:
            failover = asyncio.run(three_nodes(node, count))
        finally:
            node.kill()
        print("\n".join(f"{name:<10}{one.value:>12.4g} {one.unit:<9}{one.what}" for one in failover), flush=True)
        found[name] += failover
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.groups", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    agree = commands.add_parser("rebalances", help="groups that come to an agreement")
    agree.add_argument("--members", type=int, nargs="+", default=[10, 100, 1000])
    agree.add_argument("--rounds", type=int, default=1)
    agree.add_argument("--protocol", action="append", choices=PROTOCOLS, help="only this one; repeatable")
    crowd = commands.add_parser("many", help="very many groups, and the death of their coordinator")
    crowd.add_argument("--groups", type=int, default=100_000)
    turns = commands.add_parser("turns", help="the longest turn at each event of large groups")
    turns.add_argument("--members", type=int, nargs="+", default=[1_000, 9_990])
    turns.add_argument("--groups", type=int, default=100_000)
    turns.add_argument("--kind", action="append", choices=KINDS, help="only this one; repeatable")
    for command in (agree, crowd):
        command.add_argument("--system", action="append", choices=SYSTEMS, help="only this one; repeatable")
    for command in (agree, crowd, turns):
        command.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.command == "turns":
        found = event_turns(options.kind or list(KINDS), options.members, options.groups)
        if options.json is not None:
            options.json.write_text(json.dumps([turn._asdict() for turn in found], indent=1))
        return 0
    chosen = options.system or list(SYSTEMS)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    content: Any
    with tempfile.TemporaryDirectory(prefix="groups-") as name, tuned(Path(name)):
        if options.command == "many":
            figures = many(chosen, Path(name), options.groups)
            content = {system: [one._asdict() for one in some] for system, some in figures.items()}
        else:
            nodes = started(chosen, Path(name))
            try:
                rows = asyncio.run(
                    all_rebalances(nodes, options.protocol or PROTOCOLS, options.members, options.rounds)
                )
            finally:
                stop(nodes)
            print(rebalance_table(rows))
            content = [{**row._asdict(), "rebalance": row.rebalance._asdict()} for row in rows]
    if options.json is not None:
        options.json.write_text(json.dumps(content, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
