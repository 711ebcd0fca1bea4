"""`mainstem txn abort`"""

from __future__ import annotations

import click

from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json
from mainstem.cli.txn.coordinators import Coordinators, coordinators
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.init_producer_id import InitProducerIdRequest
from mainstem.protocol.messages.transaction_administration import (
    DescribeTransactionsRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

TIMEOUT_MS = 60_000
"""Of the producer that takes the id over, and begins no transaction."""


@click.command("abort")
@click.argument("transactional_id", metavar="ID", required=False)
@click.option("--topic", metavar="TOPIC", help="The topic of a transaction that hangs.")
@click.option("--partition", type=click.IntRange(min=0), metavar="NUMBER", help="The partition where it hangs.")
@click.option("--start-offset", type=click.IntRange(min=0), metavar="OFFSET", help="Where it begins there, as listed.")
@options.kafka_only
@options.as_json
def command(
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Abort the open transaction of ID, whose producer is fenced. A transaction that hangs, since no coordinator knows
    it (txn list --hanging), is aborted in one partition: give --topic, --partition and --start-offset."""
    place = (topic, partition, start_offset)
    with coordinators(bootstrap) as nodes:
        if transactional_id is not None and place == (None, None, None):
            producer_id = _take_over(nodes, transactional_id)
            told = f"the producer of {transactional_id} is fenced, and has no transaction open"
        elif transactional_id is None and topic is not None and partition is not None and start_offset is not None:
            producer_id = _abort_hanging(nodes, topic, partition, start_offset)
            told = f"{topic}-{partition}: the transaction of producer {producer_id} at {start_offset} is aborted"
        else:
            raise click.UsageError("it takes a transactional id, or --topic, --partition and --start-offset")
    if as_json:
        print_json({"aborted": True, "producer_id": producer_id})
    else:
        click.echo(told)


def _take_over(nodes: Coordinators, transactional_id: str) -> int:
    """Raises RequestRefused for an id that nobody has used: taking it over would make it."""
    known = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
    nodes.asked(transactional_id, known, 0, lambda told: told.transaction_states[0].error_code)
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)
    answer = nodes.asked(transactional_id, request, 4, lambda told: told.error_code)
    return int(answer.producer_id)


def _abort_hanging(nodes: Coordinators, topic: str, partition: int, start_offset: int) -> int:
    led = next((one for one in nodes.partitions(topic) if one.partition == partition), None)
    if led is None:
        raise RequestRefused(f"topic {topic} has no partition {partition} with a leader")
    open_here = nodes.open_producers(led)
    producer = next((one for one in open_here if one.current_txn_start_offset == start_offset), None)
    if producer is None:
        known = ", ".join(str(one.current_txn_start_offset) for one in open_here) or "none"
        raise RequestRefused(f"{topic}-{partition}: no transaction is open from {start_offset} on; open are {known}")
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(name=topic, partition_indexes=(partition,)),),
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )
    answer = nodes.call(led.leader, WriteTxnMarkersRequest(markers=(marker,)), 1)
    code = ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)
    if code is not ErrorCode.NONE:
        raise RequestRefused(f"{topic}-{partition}: the marker was not written: {code.message} ({code.name})")
    return producer.producer_id
