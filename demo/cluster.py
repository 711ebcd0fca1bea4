"""`make demo-cluster`: a cluster that grows, loses nodes and shrinks while a year of flights goes through it.

The story: three nodes start on empty directories. A Kafka client sends 336,776 flights, keyed by aircraft, and a
consumer follows, from the first step to the last. A broker without storage joins, serves queues, and is killed: nobody
copies a byte for it. A storage node is killed and comes back. A fourth storage node joins, the third gives away all
that it holds and leaves for good, and the fourth gets its share of leaders. Then everything is read again. Exit code 0
only if every check at the end holds.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from demo.commands import run
from demo.errors import DemoFailed
from demo.messages.data import FLIGHTS, DataMissing, FlightData, fetch
from demo.messages.ledger import Reading
from demo.messages.readers import Follower, read_whole
from demo.messages.sender import Sender
from demo.node_process import NodeFailed, NodeProcess
from demo.summary import Check, console, say, show, summary
from demo.waiting import Pace, give_up_after, wait_until

HOST = "127.0.0.1"
TOPIC, PARTITIONS = "flights", 24
FOUNDERS = (1, 2, 3)
BROKER, NEWCOMER = 4, 5
KILLED, LEAVING = 2, 3
DATA_DIRECTORY = Path(".demo")
SETTINGS: dict[str, object] = {"pipeline.mode": "off", "nameserver.write_groups": 4}

FLIGHTS_PER_SECOND = 6_000
"""At this pace the year takes a minute, which is about as long as the cluster takes to change."""
STEP_SECONDS_MAX = 60.0
SECONDS_MAX = 178
"""The demo's promise is three minutes; past this it gives up and says where it stood."""


def main() -> int:
    give_up_after(SECONDS_MAX)
    directory = Path(tempfile.mkdtemp(prefix="mainstem-demo-"))
    started = time.monotonic()
    story: Story | None = None
    try:
        story = Story(directory, fetch(DATA_DIRECTORY))
        checks = story.tell()
    except (DataMissing, NodeFailed) as error:
        console.print(f"[red]The demo failed:[/] {error}", soft_wrap=True)
        return 1
    except (DemoFailed, KafkaException, TimeoutError) as error:
        console.print(f"[red]The demo failed:[/] {error}\n{story.log_tails() if story else ''}", soft_wrap=True)
        return 1
    finally:
        if story is not None:
            story.end()
        shutil.rmtree(directory, ignore_errors=True)
    return summary(checks, story.served, time.monotonic() - started)


class Story:
    """The steps over a cluster; `tell` goes through them and returns what they proved."""

    def __init__(self, directory: Path, data: FlightData) -> None:
        self._data = data
        addresses = {
            node: {name: _free_address() for name in ("kafka", "http", "rpc")} for node in range(1, NEWCOMER + 1)
        }
        peers = json.dumps({str(node): addresses[node]["rpc"] for node in FOUNDERS})
        self._nodes: dict[int, NodeProcess] = {}
        for node, given in addresses.items():
            roles = {"roles": "broker"} if node == BROKER else {}
            settings = {**SETTINGS, **roles, "node_id": node, "nameserver.peers": peers}
            self._nodes[node] = NodeProcess(directory / f"node-{node}", settings)
            self._nodes[node].addresses = given
        self._running: set[int] = set()
        self._checks: list[Check] = []
        self._sent = threading.Event()
        self._fault: Exception | None = None
        self.served: Mapping[str, Mapping[str, int]] = {}
        """Reader -> bytes by the tier that served them."""
        self._admin: AdminClient | None = None

    def tell(self) -> list[Check]:
        """Raises `NodeFailed`, `DemoFailed`, KafkaException, TimeoutError."""
        self._start(*FOUNDERS)
        say(f"three nodes are ready: Kafka at {self._bootstrap}")
        self._admin = admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        wait_until(lambda: min(self._leaders()) > 0, "write groups have no leaders", STEP_SECONDS_MAX)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(timeout=30)
        sender = Sender(self._bootstrap, [TOPIC])
        follower = Follower(self._bootstrap, TOPIC, PARTITIONS)
        follower.start()
        sending = threading.Thread(target=self._send, args=(sender,), daemon=True)
        sending.start()
        for step in (self._broker_comes_and_goes, self._node_dies, self._node_takes_the_place_of_another):
            step(sender)
        self._follow_to_the_end(sender, sending, follower)
        show("mainstem cluster status", run("cluster", "status", "--http", self._nodes[1].addresses["http"]))
        again = read_whole(self._bootstrap, {TOPIC: PARTITIONS}, STEP_SECONDS_MAX)[TOPIC]
        self.served = {f"clients of node {node}": self._nodes[node].bytes_by_tier() for node in sorted(self._running)}
        return [*self._checks, *self._checks_of_messages(sender, follower.reading, again)]

    def end(self) -> None:
        """Make sure that nothing is left running."""
        for node in self._nodes.values():
            node.end()

    def log_tails(self) -> str:
        return "\n".join(f"  node {number}:\n{node.log_tail()}" for number, node in self._nodes.items())

    # --- steps ------------------------------------------------------------------------------------------------

    def _send(self, sender: Sender) -> None:
        try:
            pace = Pace(FLIGHTS_PER_SECOND)
            for flight in self._data.flights():
                pace.wait()
                sender.send(TOPIC, flight.key, flight.value)
            sender.flush()
        except Exception as error:
            # Kept for the story's thread, which ends the demo with it.
            self._fault = error
        finally:
            self._sent.set()

    def _broker_comes_and_goes(self, sender: Sender) -> None:
        self._goes_on(sender)
        self._start(BROKER)
        wait_until(lambda: len(self._queues_of(BROKER)) > 0, "the broker got no queues", STEP_SECONDS_MAX)
        served = len(self._queues_of(BROKER))
        say(f"node {BROKER}, a broker without storage, has joined and serves {served} of {PARTITIONS} partitions")
        self._goes_on(sender)
        self._nodes[BROKER].kill()
        self._running.discard(BROKER)
        killed = time.monotonic()
        wait_until(lambda: not self._queues_of(BROKER), "the dead broker's queues went to nobody", STEP_SECONDS_MAX)
        seconds = time.monotonic() - killed
        self._goes_on(sender)
        run("cluster", "remove", str(BROKER), "--http", self._nodes[1].addresses["http"])
        say(f"the broker was killed with SIGKILL, and is removed; {seconds:.1f} s later others served its partitions")
        holds = not any(one["node"] == BROKER for group in self._view()["write_groups"] for one in group["replicas"])
        self._checks.append(
            Check(
                "a broker comes and goes, and nothing is copied for it",
                holds and served > 0,
                f"it served {served} partitions, held no replica; others served them {seconds:.1f} s after its death",
            )
        )

    def _node_dies(self, sender: Sender) -> None:
        code = self._nodes[KILLED].kill()
        self._running.discard(KILLED)
        wait_until(
            lambda: not self._leaders() & {-1, KILLED},
            "write groups have no leader but the dead node",
            STEP_SECONDS_MAX,
        )
        before = sender.acknowledged
        self._goes_on(sender)
        say(f"node {KILLED} was killed with SIGKILL; two of three go on: {sender.acknowledged:,} messages acknowledged")
        self._checks.append(
            Check(
                "a storage node dies, and writes go on",
                code == -signal.SIGKILL and sender.acknowledged > before,
                f"{sender.acknowledged - before:,} messages acknowledged without it",
            )
        )
        seconds = self._nodes[KILLED].start()
        self._running.add(KILLED)
        say(f"node {KILLED} is back after {seconds:.1f} s on the same directories")

    def _node_takes_the_place_of_another(self, sender: Sender) -> None:
        http = ("--http", self._nodes[1].addresses["http"])
        self._start(NEWCOMER)
        say(f"node {NEWCOMER}, with empty disks, has joined; node {LEAVING} gives away all that it holds")
        before = sender.acknowledged
        began = time.monotonic()
        run("cluster", "drain", str(LEAVING), "--wait", *http)
        seconds = time.monotonic() - began
        self._goes_on(sender)
        self._nodes[LEAVING].stop()
        self._running.discard(LEAVING)
        run("cluster", "remove", str(LEAVING), *http)
        view = self._view()
        voters = {one["node"] for group in view["write_groups"] for one in group["replicas"] if one["voter"]}
        say(f"node {LEAVING} was drained in {seconds:.1f} s, stopped and removed")
        self._checks.append(
            Check(
                "a node joins, another is drained under load and leaves",
                voters == {1, 2, NEWCOMER} and LEAVING not in {node["node_id"] for node in view["nodes"]},
                f"{seconds:.1f} s; replicas on nodes {', '.join(map(str, sorted(voters)))}; "
                f"{sender.acknowledged - before:,} messages acknowledged meanwhile",
            )
        )
        show("mainstem cluster rebalance", run("cluster", "rebalance", *http))
        wait_until(lambda: NEWCOMER in self._leaders(), "the newcomer leads nothing", STEP_SECONDS_MAX)
        leaders = self._leaders()
        self._goes_on(sender)
        self._checks.append(
            Check(
                "the newcomer gets its share of leaders",
                NEWCOMER in leaders,
                f"nodes {', '.join(map(str, sorted(leaders)))} lead",
            )
        )

    def _follow_to_the_end(self, sender: Sender, sending: threading.Thread, follower: Follower) -> None:
        if not self._sent.is_set():
            say(f"{sender.rows:,} flights are sent; the rest follows")
        sending.join()
        if self._fault is not None:
            raise DemoFailed(f"the producer failed: {self._fault}") from self._fault
        say(f"{sender.acknowledged:,} of {sender.rows:,} messages are acknowledged")
        wait_until(
            lambda: follower.fault is not None or len(follower.reading.fingerprints) >= FLIGHTS,
            "the consumer did not read all flights",
            STEP_SECONDS_MAX,
        )
        follower.stop()
        if follower.fault is not None:
            raise DemoFailed(f"the consumer failed: {follower.fault}") from follower.fault

    # --- what is seen of it -----------------------------------------------------------------------------------

    @property
    def _bootstrap(self) -> str:
        return ",".join(self._nodes[node].addresses["kafka"] for node in FOUNDERS)

    def _start(self, *nodes: int) -> None:
        faults: list[Exception] = []

        def start(node: int) -> None:
            try:
                self._nodes[node].start()
            except NodeFailed as error:
                faults.append(error)

        threads = [threading.Thread(target=start, args=(node,)) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]
        self._running.update(nodes)

    def _view(self) -> Any:
        return self._nodes[1].view("/v1/cluster")

    def _leaders(self) -> set[int]:
        return {group["leader"] for group in self._view()["write_groups"]}

    def _queues_of(self, node: int) -> list[int]:
        """The partitions whose clients are sent to this node. Raises KafkaException."""
        assert self._admin is not None
        partitions = self._admin.list_topics(TOPIC, timeout=STEP_SECONDS_MAX).topics[TOPIC].partitions
        return [number for number, partition in partitions.items() if partition.leader == node]

    def _goes_on(self, sender: Sender) -> None:
        """Wait until something sent from now on is acknowledged, unless all is sent."""
        wanted = sender.acknowledged + sender.in_flight + 1
        wait_until(
            lambda: self._sent.is_set() or sender.acknowledged >= wanted,
            "the producer does not go on",
            STEP_SECONDS_MAX,
        )
        if self._fault is not None:
            raise DemoFailed(f"the producer failed: {self._fault}") from self._fault

    def _checks_of_messages(self, sender: Sender, followed: Reading, again: Reading) -> list[Check]:
        sent = sender.sent[TOPIC]
        return [
            Check(
                "every message was acknowledged",
                sent.rows == FLIGHTS and not sender.refused and sender.acknowledged == sent.rows,
                f"{sender.acknowledged:,} of {FLIGHTS:,}, {len(sender.refused)} refused",
            ),
            Check(
                "a consumer followed through all of it: complete, in order, nothing twice",
                followed.is_exactly(sent),
                f"{len(followed.fingerprints):,} messages, {len(followed.digests()):,} key digests equal",
            ),
            Check(
                "read again at the end: the same messages at the same offsets",
                again.is_exactly(sent) and again.fingerprints == followed.fingerprints,
                f"{len(again.fingerprints):,} offsets compared",
            ),
        ]


def _free_address() -> str:
    """An address that nobody listens at just now, outside the range that outgoing connections take theirs from, so that
    a node finds it free when it comes back."""
    while True:
        port = random.randrange(10_000, 30_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            return f"{HOST}:{port}"


if __name__ == "__main__":
    sys.exit(main())
