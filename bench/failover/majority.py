"""How long does a cluster pause when a majority of its nodes is killed and started again at once?

Two of the three nodes are killed (SIGKILL) in one moment and started again in the next, time after time. No write group
has a majority until one of the two has come far enough to vote. Measured from the kill:

    cluster      a client of little patience: it asks all nodes for an append (acks=all) to a partition of each write
                 group, until one acknowledges it
    clients      the longest time between two acknowledgements of a partition, as in the other failovers
    timeline     when a node first reached which step of its start, as its log tells
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from bench.failover.clients import ClientLoad
from bench.failover.clusters import MainstemCluster
from bench.failover.knocker import Knocker
from bench.failover.waiting import RECOVERY_SECONDS_MAX, wait_until

KNOCK_SECONDS = 0.01
"""Three nodes are asked for each write group, two of them while they start: asking more often would slow them."""

STEPS = {
    "begun": r"mainstem \S+, node \d+",
    "met": r"cluster \S+, \d+ topics",
    "recovered": r"storage recovered",
    "metadata led": r"this node leads the metadata",
    "group led": r"write group \d+ is led by this node",
    "ready": r"ready: Kafka clients at",
}
"""Step of a start -> how the line in the node's log begins that tells of it."""

STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) \w+ +\S+: (.*)")


class Round(NamedTuple):
    """Seconds from the kill."""

    victims: tuple[int, ...]
    cluster: dict[int, float]
    """By write group."""
    clients: dict[str, dict[int, float]]
    timeline: dict[int, dict[str, float]]
    """Node -> step -> when it was reached."""


def kill_majority(cluster: MainstemCluster, clients: Sequence[ClientLoad], randomness: random.Random) -> Round:
    """Kill two nodes of a well cluster and start them again; returns once every partition is written to again."""
    victims = tuple(sorted(randomness.sample(sorted(cluster.addresses), len(cluster.addresses) // 2 + 1)))
    read = {node_id: cluster.nodes[node_id].log.stat().st_size for node_id in cluster.addresses}
    for client in clients:
        client.pauses.mark()
    killed_at, clock_at = time.monotonic(), time.time()
    for node_id in victims:
        cluster.kill(node_id)
    for node_id in victims:
        cluster.launch_again(node_id)
    seen = asyncio.run(_knock(cluster, killed_at))
    recovered_at = killed_at + max(seen.values())
    for client in clients:
        client.wait_for(list(cluster.partitions.values()), recovered_at)
    paused = {client.name: client.pauses.pauses() for client in clients}
    for node_id in victims:
        cluster.nodes[node_id].wait_ready(killed_at + RECOVERY_SECONDS_MAX)
    wait_until(cluster.is_well, "a well cluster")
    timeline = {
        node_id: steps(cluster.nodes[node_id].log.read_bytes()[read[node_id] :].decode(errors="replace"), clock_at)
        for node_id in cluster.addresses
    }
    return Round(victims, seen, paused, timeline)


async def _knock(cluster: MainstemCluster, killed_at: float) -> dict[int, float]:
    knocker = Knocker(cluster.addresses, KNOCK_SECONDS)
    groups = sorted(cluster.partitions)
    deadline = killed_at + RECOVERY_SECONDS_MAX
    moments = await asyncio.gather(
        *(knocker.until_acknowledged(list(cluster.addresses), cluster.partitions[group], deadline) for group in groups)
    )
    return {group: moment - killed_at for group, moment in zip(groups, moments, strict=True)}


def steps(log: str, since: float) -> dict[str, float]:
    """When a node reached each step, in seconds after `since` (seconds since the epoch), by the lines of its log."""
    found: dict[str, float] = {}
    for line in log.splitlines():
        if (match := STAMP.match(line)) is None:
            continue
        for step, pattern in STEPS.items():
            if step not in found and re.match(pattern, match[2]):
                moment = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)
                found[step] = moment.timestamp() - since
    return found


def line(number: int, one: Round) -> str:
    parts = [f"{number + 1:>4} nodes {', '.join(map(str, one.victims))}:"]
    for name, values in (("cluster", one.cluster), *one.clients.items()):
        parts.append(f"{name} {min(values.values()):.2f}-{max(values.values()):.2f}")
    for node_id, timeline in one.timeline.items():
        parts.append(f"[{node_id}: {' '.join(f'{step} {moment:.2f}' for step, moment in timeline.items())}]")
    return "  ".join(parts)


def last_of(rounds: Sequence[Round]) -> Mapping[str, list[float]]:
    """By what was measured, of each round the partition that waited longest."""
    table = {"cluster": [max(one.cluster.values()) for one in rounds]}
    for name in rounds[0].clients:
        table[name] = [max(one.clients[name].values()) for one in rounds]
    for step in STEPS:
        table[f"first {step}"] = [
            min((it[step] for it in one.timeline.values() if step in it), default=0.0) for one in rounds
        ]
    return table
