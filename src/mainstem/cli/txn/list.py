"""`mainstem txn list`"""

from __future__ import annotations

import time

import click

from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table
from mainstem.cli.txn.coordinators import Coordinators, coordinators
from mainstem.protocol.messages.transaction_administration import ListTransactionsRequest

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")

HANGS_AFTER_MINUTES = 16
"""A minute longer than a transaction may last where `transactions.timeout_ms_max` is as it comes."""


@click.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only transactions in this state, as Ongoing.")
@click.option("--hanging", is_flag=True, help="Look into partitions for transactions that no coordinator knows.")
@click.option("--topic", metavar="TOPIC", help="With --hanging: only in this topic.")
@click.option(
    "--idle-minutes",
    type=click.IntRange(min=0),
    default=HANGS_AFTER_MINUTES,
    show_default=True,
    help="With --hanging: only those without a message for so many minutes.",
)
@options.kafka_only
@options.as_json
def command(
    states: tuple[str, ...], hanging: bool, topic: str | None, idle_minutes: int, bootstrap: str, as_json: bool
) -> None:
    """List the transactional ids of the cluster with their states; with --hanging the transactions that are open in a
    partition, and that no coordinator will end."""
    if topic is not None and not hanging:
        raise click.UsageError("--topic goes with --hanging")
    with coordinators(bootstrap) as nodes:
        if hanging:
            _list_hanging(nodes, topic, idle_minutes, as_json=as_json)
            return
        found = nodes.listed(ListTransactionsRequest(state_filters=states, producer_id_filters=()))
    rows = [(it.transactional_id, it.transaction_state, it.producer_id, str(node)) for it, node in found]
    if as_json:
        keys = ("transactional_id", "state", "producer_id", "coordinator")
        print_json({"transactions": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        print_table(["~TRANSACTIONAL ID", "STATE", ">PRODUCER ID", "COORDINATOR"], rows, empty="no transactional ids")


def _list_hanging(nodes: Coordinators, topic: str | None, idle_minutes: int, *, as_json: bool) -> None:
    before_ms = time.time_ns() // 1_000_000 - idle_minutes * 60_000
    suspects = [
        (partition, producer)
        for partition in nodes.partitions(topic)
        for producer in nodes.open_producers(partition)
        if producer.last_timestamp <= before_ms
    ]
    listed = nodes.listed(ListTransactionsRequest(state_filters=OPEN_STATES, producer_id_filters=()))
    known = {each.producer_id for each, _ in listed}
    rows = [
        (
            partition.topic,
            partition.partition,
            producer.producer_id,
            producer.producer_epoch,
            producer.current_txn_start_offset,
        )
        for partition, producer in suspects
        if producer.producer_id not in known
    ]
    if as_json:
        keys = ("topic", "partition", "producer_id", "producer_epoch", "start_offset")
        print_json({"hanging": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        titles = ["~TOPIC", ">PARTITION", ">PRODUCER ID", ">EPOCH", ">START OFFSET"]
        print_table(titles, rows, empty="no transaction hangs")
