"""`mainstem txn describe`"""

from __future__ import annotations

import time

import click

from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table
from mainstem.cli.txn.coordinators import coordinators
from mainstem.protocol.messages.transaction_administration import DescribeTransactionsRequest


@click.command("describe")
@click.argument("transactional_id", metavar="ID")
@options.kafka_only
@options.as_json
def command(transactional_id: str, bootstrap: str, as_json: bool) -> None:
    """Show the state of a transactional id: its producer, and the partitions of its open transaction."""
    request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
    with coordinators(bootstrap) as nodes:
        answer = nodes.asked(transactional_id, request, 0, lambda told: told.transaction_states[0].error_code)
    found = answer.transaction_states[0]
    partitions = [(topic.topic, partition) for topic in found.topics for partition in topic.partitions]
    if as_json:
        print_json(
            {
                "transactional_id": transactional_id,
                "state": found.transaction_state,
                "producer_id": found.producer_id,
                "producer_epoch": found.producer_epoch,
                "timeout_ms": found.transaction_timeout_ms,
                "started_ms": found.transaction_start_time_ms,
                "partitions": [{"topic": topic, "partition": partition} for topic, partition in partitions],
            }
        )
        return
    click.echo(
        f"{transactional_id}: {found.transaction_state}, producer {found.producer_id} epoch {found.producer_epoch}, "
        f"timeout {found.transaction_timeout_ms} ms"
    )
    if partitions:
        age_seconds = time.time() - found.transaction_start_time_ms / 1000
        click.echo(f"its transaction began {age_seconds:.0f} s ago")
        print_table(["~TOPIC", ">PARTITION"], partitions, empty="")
