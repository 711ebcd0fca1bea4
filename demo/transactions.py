"""`make demo-transactions`: a bank that is killed half-way, again and again, and adds up.

The story: tellers take orders from one topic and book each as two entries in another, dozens of orders in one
transaction that commits their offsets, too. Every second a teller is killed with SIGKILL in the middle of it, now and
then the node is; some transactions are taken back. At the end the ledger has both entries of every order, once; a
reader of uncommitted messages sees all that was taken back besides. Then Spark splits and merges the ledger, the node
starts anew, and the same audit reads it from disk 2. Exit code 0 only if every check at the end holds.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from demo.bank.orders import LEDGER, ORDERS, Audit, Entry, audit, orders
from demo.bank.teller import GROUP
from demo.bank.tellers import Tellers
from demo.commands import run
from demo.errors import DemoFailed
from demo.node_process import NodeFailed, NodeProcess
from demo.stage import create_topics
from demo.summary import Check, console, say, show, summary
from demo.waiting import give_up_after
from mainstem.pipeline.spark.java import find_java, spark_missing

SECONDS_MAX = 178
ORDER_COUNT = 20_000
ORDER_PARTITIONS, LEDGER_PARTITIONS = 4, 6
TELLERS = 3
KILL_SECONDS = 1.0
NODE_KILLS = 2
BOOKING_SECONDS_MAX = 90.0
READING_SECONDS_MAX = 60.0
SEED = 11
SETTINGS: dict[str, object] = {
    "pipeline.mode": "off",
    # Little data: small segments, which go once they are split, so that the last reading is from disk 2.
    "journal.segment_bytes": 1 << 20,
    "journal.segment_age_seconds": 2,
    "storage.prune_seconds": 0.5,
}


def main() -> int:
    give_up_after(SECONDS_MAX)
    if missing := " ".join(filter(None, (find_java().missing, spark_missing()))):
        console.print(f"[red]The demo needs Spark:[/] {missing}")
        return 1
    directory = Path(tempfile.mkdtemp(prefix="mainstem-demo-"))
    started = time.monotonic()
    story = Story(directory)
    try:
        checks = story.tell()
    except NodeFailed as error:
        console.print(f"[red]The demo failed:[/] {error}", soft_wrap=True)
        return 1
    except (DemoFailed, KafkaException, TimeoutError) as error:
        console.print(f"[red]The demo failed:[/] {error}\n{story.node.log_tail()}", soft_wrap=True)
        return 1
    finally:
        story.end()
        shutil.rmtree(directory, ignore_errors=True)
    return summary(checks, story.served, time.monotonic() - started)


class Story:
    """The steps over one node; `tell` goes through them and returns what they proved."""

    def __init__(self, directory: Path) -> None:
        self.node = NodeProcess(directory, SETTINGS)
        self.served: dict[str, Mapping[str, int]] = {}
        self._given = list(orders(ORDER_COUNT, SEED))
        self._tellers: Tellers | None = None
        self._choice = random.Random(SEED)

    def tell(self) -> list[Check]:
        """Raises `NodeFailed`, `DemoFailed`, KafkaException, TimeoutError."""
        self.node.start()
        topics = [NewTopic(ORDERS, ORDER_PARTITIONS, 1), NewTopic(LEDGER, LEDGER_PARTITIONS, 1)]
        create_topics(self._bootstrap, topics)
        self._give_orders()
        say(f"a node at {self._bootstrap} has {ORDER_COUNT:,} orders; {TELLERS} tellers begin to book them")
        checks = self._book()
        self.served["the audit, after the booking"] = self.node.bytes_by_tier()
        return [*checks, *self._from_disk_two()]

    def end(self) -> None:
        """Make sure that nothing is left running."""
        if self._tellers is not None:
            self._tellers.end()
        self.node.end()

    @property
    def _bootstrap(self) -> str:
        return self.node.addresses["kafka"]

    def _give_orders(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "log_level": 0})
        for order in self._given:
            producer.produce(ORDERS, key=str(order.number).encode(), value=order.content())
            producer.poll(0)
        if producer.flush(30):
            raise DemoFailed("the node did not take all orders")

    def _book(self) -> list[Check]:
        self._tellers = tellers = Tellers(self._bootstrap, TELLERS, SEED)
        began = time.monotonic()
        node_kills = 0
        while self._booked() < ORDER_COUNT:
            if time.monotonic() - began > BOOKING_SECONDS_MAX:
                raise DemoFailed(f"{self._booked():,} of {ORDER_COUNT:,} orders are booked; tellers: {tellers.ended}")
            tellers.keep_at_work()
            time.sleep(KILL_SECONDS * self._choice.uniform(0.7, 1.5))
            if node_kills < NODE_KILLS and self._booked() > ORDER_COUNT * (node_kills + 1) / (NODE_KILLS + 1):
                self.node.kill()
                seconds = self.node.start()
                node_kills += 1
                say(f"the node was killed with SIGKILL, and is back after {seconds:.1f} s")
            else:
                tellers.kill_one()
        tellers.end()
        kills = tellers.ended["killed"]
        say(f"all orders are booked; {kills} tellers were killed meanwhile, and the node {node_kills} times")
        show("mainstem txn list", run("txn", "list", "--bootstrap", self._bootstrap))
        found = self._entries("read_committed")
        everything = self._entries("read_uncommitted")
        result = audit(self._given, found)
        return [
            Check(
                "every order is in the ledger, both sides, once",
                result.is_clean and len(found) == 2 * ORDER_COUNT and kills > 0 and node_kills == NODE_KILLS,
                f"{len(found):,} entries; {_told(result)}; {kills} tellers and {node_kills} nodes killed",
            ),
            Check(
                "readers of uncommitted messages see what was taken back, others do not",
                len(everything) > len(found),
                f"{len(everything) - len(found):,} entries of transactions that were aborted",
            ),
        ]

    def _from_disk_two(self) -> list[Check]:
        http = ("--http", self.node.addresses["http"])
        run("split", "run", "--once", *http)
        run("store", "merge", "--once", *http)
        say("mainstem split run --once, mainstem store merge --once: the ledger is on disk 2")
        show("mainstem store usage", run("store", "usage", *http))
        self.node.stop()
        self.node.start()
        found = self._entries("read_committed")
        result = audit(self._given, found)
        self.served["the audit, split and merged"] = self.node.bytes_by_tier()
        stored = sum(self.served["the audit, split and merged"].get(tier, 0) for tier in ("queue_store", "read_cache"))
        return [
            Check(
                "split and merged by Spark, the ledger read from disk 2 adds up as well",
                result.is_clean and len(found) == 2 * ORDER_COUNT and stored > 0,
                f"{len(found):,} entries; {_told(result)}",
            )
        ]

    def _booked(self) -> int:
        """Orders behind which the tellers' group has committed. Zero while nobody tells."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": GROUP, "log_level": 0})
        try:
            places = consumer.committed([TopicPartition(ORDERS, number) for number in range(ORDER_PARTITIONS)], 5)
            return sum(max(place.offset, 0) for place in places)
        except KafkaException:
            return 0
        finally:
            consumer.close()

    def _entries(self, isolation: str) -> list[Entry]:
        """The whole ledger. Raises TimeoutError."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "audit",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
                "log_level": 0,
            }
        )
        unread = set(range(LEDGER_PARTITIONS))
        consumer.assign([TopicPartition(LEDGER, number, 0) for number in unread])
        found: list[Entry] = []
        deadline = time.monotonic() + READING_SECONDS_MAX
        try:
            while unread:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(unread)} partitions of the ledger were not read to their end")
                for message in consumer.consume(2_000, 0.3):
                    error = message.error()
                    if error is None:
                        found.append(Entry.of(message.value() or b""))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        unread.discard(message.partition())
        finally:
            consumer.close()
        return found


def _told(result: Audit) -> str:
    return ", ".join(f"{name} {count}" for name, count in result._asdict().items())


if __name__ == "__main__":
    sys.exit(main())
