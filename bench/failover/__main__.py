"""How long is a partition without a leader when its leader dies?

Three nodes of `mainstem serve` with default settings, or of Kafka, on this machine. Time after time a node
that leads something is killed (SIGKILL), and when everybody has recovered it is started again and the cluster is well
again. Measured from the kill, for every write group that the victim led (with Kafka: for every partition):

    cluster      a client of no patience: it asks the survivors for an append (acks=all) to a partition of the group
                 every millisecond, until one acknowledges it
    librdkafka   an idempotent producer with default settings under a steady trickle: its longest time between two
                 acknowledgements of a partition
    kafka-python the same of a client that is made like the Java client (100 ms between retries)

    python -m bench.failover --kills 100 [--system kafka]
    python -m bench.failover --brokers 2       one of two brokers without storage, in front of three nodes that store
    python -m bench.failover --brokers 2 --vanish   the broker answers nothing any more, as if its host were gone
    python -m bench.failover --majority 10     two of the three killed and started again at once (`majority`)

Prints a table, and with `--json FILE` writes every figure. Some six seconds per kill.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.__main__ import CACHE
from bench.failover import majority
from bench.failover.clients import ClientLoad, KafkaPython, Librdkafka
from bench.failover.clusters import BrokersCluster, Cluster, KafkaCluster, MainstemCluster, bootstrap
from bench.failover.knocker import Knocker
from bench.failover.waiting import RECOVERY_SECONDS_MAX, wait_until
from mainstem.nameserver.cluster.node_liveness import OF_NOTHING

TARGET_MEDIAN_SECONDS = 1.0
TARGET_P99_SECONDS = 3.0
TARGET_VANISHED_SECONDS = OF_NOTHING.dead_seconds + 1.0
"""Of a broker that answers nothing any more: until it is held for dead, and a second."""


class Kill(NamedTuple):
    """Seconds, by write group that the victim led."""

    victim: int
    metadata_leader: bool | None
    cluster: dict[int, float]
    clients: dict[str, dict[int, float]]
    well_again_seconds: float
    """From the start of the victim's successor to a cluster in which nobody lacks anything."""


def kill_once(cluster: Cluster, clients: Sequence[ClientLoad], randomness: random.Random) -> Kill:
    leaders = cluster.leaders(min(cluster.addresses))
    victim = randomness.choice(sorted(set(leaders.values())))
    survivors = [node_id for node_id in cluster.addresses if node_id != victim]
    led = [group for group, leader in leaders.items() if leader == victim and group in cluster.partitions]
    metadata_leader = cluster.leads_metadata(victim, survivors[0])
    for client in clients:
        client.pauses.mark()
    killed_at = cluster.kill(victim)

    async def knock() -> dict[int, float]:
        knocker = Knocker({node_id: cluster.addresses[node_id] for node_id in survivors})
        moments = await asyncio.gather(
            *(
                knocker.until_acknowledged(survivors, cluster.partitions[group], killed_at + RECOVERY_SECONDS_MAX)
                for group in led
            )
        )
        return {group: moment - killed_at for group, moment in zip(led, moments, strict=True)}

    seen = asyncio.run(knock())
    recovered_at = killed_at + max(seen.values())  # an answer from before the kill may be read after it
    for client in clients:
        client.wait_for([cluster.partitions[group] for group in led], recovered_at)
    paused = {client.name: client.pauses.pauses() for client in clients}
    begun = time.monotonic()
    cluster.start_again(victim)
    wait_until(cluster.is_well, "a well cluster")
    return Kill(
        victim,
        metadata_leader,
        seen,
        {name: {group: pauses[cluster.partitions[group]] for group in led} for name, pauses in paused.items()},
        time.monotonic() - begun,
    )


class Figures(NamedTuple):
    """Seconds."""

    samples: int
    median: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figures:
        ordered = sorted(values)
        at = min(len(ordered) - 1, -(-99 * len(ordered) // 100) - 1)
        return cls(len(ordered), statistics.median(ordered), ordered[at], ordered[-1])


def figures(kills: Sequence[Kill], names: Sequence[str]) -> dict[str, Figures]:
    """By what was measured."""
    table = {"cluster": Figures.of([value for kill in kills for value in kill.cluster.values()])}
    for name in names:
        table[name] = Figures.of([value for kill in kills for value in kill.clients[name].values()])
    table["all groups of a kill"] = Figures.of([max(kill.cluster.values()) for kill in kills])
    table["well again"] = Figures.of([kill.well_again_seconds for kill in kills])
    return table


def show_table(title: str, table: Mapping[str, Figures]) -> None:
    print(f"\n{title}")
    print(f"{'':<22}{'samples':>8}{'median':>9}{'p99':>9}{'max':>9}")
    for name, row in table.items():
        print(f"{name:<22}{row.samples:>8}{row.median:>9.3f}{row.p99:>9.3f}{row.most:>9.3f}")


def show(system: str, table: Mapping[str, Figures], kills: int, target: float) -> None:
    show_table(f"{system}: {kills} kills; seconds without a leader, per group that the victim led", table)
    seen = table["cluster"]
    met = seen.median <= target and seen.p99 <= TARGET_P99_SECONDS
    print(f"target: median <= {target:g} s, p99 <= {TARGET_P99_SECONDS:g} s: "
          f"{'met' if met else 'MISSED'}{'' if kills >= 100 else ' (so far: it asks for 100 kills)'}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--system", choices=["mainstem", "kafka"], default="mainstem")
    parser.add_argument("--brokers", type=int, default=0, metavar="N", help="kill one of N brokers without storage")
    parser.add_argument(
        "--vanish", action="store_true", help="stop brokers instead, and leave the client libraries out"
    )
    parser.add_argument("--majority", type=int, default=0, metavar="ROUNDS", help="kill two of the three at a time")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.vanish and not options.brokers:
        parser.error("--vanish: it is for brokers without storage; give --brokers as well")
    if options.majority and options.system != "mainstem":
        parser.error("--majority: only nodes of Mainstem say in their logs when they got how far")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    randomness = random.Random(options.seed)
    directory = Path(tempfile.mkdtemp(prefix="mainstem-failover-"))
    cluster: Cluster
    if options.system == "kafka":
        cluster = KafkaCluster(directory, CACHE)
    elif options.brokers:
        cluster = BrokersCluster(directory, options.settings, options.brokers, vanishing=options.vanish)
    else:
        cluster = MainstemCluster(directory, options.settings)
    kills: list[Kill] = []
    rounds: list[majority.Round] = []
    clients: list[ClientLoad] = []
    try:
        with cluster.running():
            cluster.make_topic()
            wait_until(cluster.is_well, "a well cluster")
            partitions = sorted(cluster.partitions.values())
            addresses = bootstrap(cluster)
            if not options.vanish:
                clients = [Librdkafka(addresses, partitions), KafkaPython(addresses, partitions)]
            for client in clients:
                client.start()
            for client in clients:
                client.wait_for(partitions, time.monotonic())
            try:
                for number in range(options.majority):
                    assert isinstance(cluster, MainstemCluster)
                    rounds.append(majority.kill_majority(cluster, clients, randomness))
                    print(majority.line(number, rounds[-1]), flush=True)
                for number in range(0 if options.majority else options.kills):
                    kill = kill_once(cluster, clients, randomness)
                    kills.append(kill)
                    print(line(number, kill), flush=True)
            finally:
                for client in clients:
                    client.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if rounds:
            table = {name: Figures.of(values) for name, values in majority.last_of(rounds).items()}
            show_table("a majority killed: seconds until the last partition is written to again", table)
            report_failures(clients)
            if options.json is not None:
                options.json.write_text(json.dumps([one._asdict() for one in rounds], indent=1))
        if kills:
            table = figures(kills, [client.name for client in clients])
            show(cluster.name, table, len(kills), TARGET_VANISHED_SECONDS if options.vanish else TARGET_MEDIAN_SECONDS)
            report_failures(clients)
            if options.json is not None:
                content = {"system": cluster.name, "kills": [kill._asdict() for kill in kills],
                           "figures": {name: row._asdict() for name, row in table.items()},
                           "failures": {client.name: client.failures[:10] for client in clients}}  # fmt: skip
                options.json.write_text(json.dumps(content, indent=1))


def report_failures(clients: Sequence[ClientLoad]) -> None:
    for client in clients:
        if client.failures:
            print(f"{client.name}: {len(client.failures)} messages failed, first: {client.failures[0]}")


def line(number: int, kill: Kill) -> str:
    parts = [f"{number + 1:>4} node {kill.victim}{' (metadata leader)' if kill.metadata_leader else ''}:"]
    for name, values in (("cluster", kill.cluster), *kill.clients.items()):
        parts.append(f"{name} {max(values.values()):.3f}")
    return "  ".join([*parts, f"well again after {kill.well_again_seconds:.1f}"])


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    main()
