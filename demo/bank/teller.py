"""A teller: takes orders, and books each as two entries in the ledger, a few dozen orders in one transaction that also
says how far it has come in the orders. It is a process of its own, so that it can be killed at any moment; whatever
it meets, it ends, and the next one under its name goes on.

    python -m demo.bank.teller BOOTSTRAP NAME SEED
"""

from __future__ import annotations

import random
import sys

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from demo.bank.orders import LEDGER, ORDERS, Order, booked

GROUP = "tellers"
ORDERS_AT_ONCE = 40
POLL_SECONDS = 0.3
TRANSACTION_TIMEOUT_MS = 10_000
CHANGES_OF_MIND = 0.05
"""Share of transactions that a teller takes back."""


def main() -> None:
    bootstrap, name, seed = sys.argv[1:]
    choice = random.Random(seed)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 2,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)  # fences the one before, and ends what it left open
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "group.instance.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": 10_000,
            "log_level": 0,
        }
    )
    consumer.subscribe([ORDERS])
    while True:
        taken = [one for one in consumer.consume(ORDERS_AT_ONCE, POLL_SECONDS) if one.error() is None]
        if taken:
            _book(producer, consumer, taken, changes_mind=choice.random() < CHANGES_OF_MIND)


def _book(producer: Producer, consumer: Consumer, taken: list[Message], *, changes_mind: bool) -> None:
    """Raises KafkaException."""
    producer.begin_transaction()
    for message in taken:
        for entry in booked(Order.of(message.value() or b"")):
            producer.produce(LEDGER, key=str(entry.account).encode(), value=entry.content())
        producer.poll(0)
    behind: dict[int, int] = {}
    first: dict[int, int] = {}
    for message in taken:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        behind[partition] = offset + 1
        first.setdefault(partition, offset)
    if changes_mind:
        producer.flush(30)
        producer.abort_transaction(30)
        for partition, offset in first.items():
            consumer.seek(TopicPartition(ORDERS, partition, offset))
        return
    places = [TopicPartition(ORDERS, partition, offset) for partition, offset in behind.items()]
    producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(30)


if __name__ == "__main__":
    try:
        main()
    except KafkaException as error:
        print(error, file=sys.stderr)
        sys.exit(1)
