"""Three nodes on this machine, of Mainstem and of Kafka, to be killed one by one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from bench.failover.topic import PARTITIONS, TOPIC
from bench.failover.waiting import RECOVERY_SECONDS_MAX, wait_until
from bench.systems.kafka import Kafka
from bench.systems.system import Durability, Setup, brokers_of, launch
from mainstem.broker.queue_routing import SETTLED_SECONDS
from mainstem.cli.dev.cluster import START_SECONDS_MAX, DevNode

NODES = 3
PORTS = range(10_000, 29_000)
KAFKA_HEAP = "512m"
"""Of each JVM: three share one machine."""
KAFKA_START_SECONDS_MAX = 120.0
METADATA_SECONDS_MAX = 10.0


class Cluster(Protocol):
    """The needs of a failover of a system. A *group* is what fails over as one: a write group, or with Kafka a
    partition."""

    name: str

    @property
    def addresses(self) -> Mapping[int, str]:
        """Node -> where its Kafka clients connect."""
        ...

    @property
    def partitions(self) -> Mapping[int, int]:
        """Group -> a partition of it."""
        ...

    def running(self) -> AbstractContextManager[None]: ...

    def make_topic(self) -> None: ...

    def leaders(self, asked: int) -> dict[int, int]:
        """Group -> the node that leads it."""
        ...

    def leads_metadata(self, node_id: int, asked: int) -> bool | None:
        """None: the system does not tell clients."""
        ...

    def is_well(self) -> bool:
        """All nodes live, all groups are led, nobody lacks anything but the newest."""
        ...

    def kill(self, node_id: int) -> float:
        """SIGKILL; the moment of it."""
        ...

    def start_again(self, node_id: int) -> None: ...


def bootstrap(cluster: Cluster) -> str:
    return ",".join(cluster.addresses.values())


class MainstemCluster:
    name = "mainstem"

    def __init__(self, directory: Path, settings: Sequence[str]) -> None:
        port = random.choice(PORTS)
        self.nodes = {
            node_id: DevNode(directory, node_id, port, NODES, ("pipeline.mode=off", *settings))
            for node_id in range(1, NODES + 1)
        }
        self.addresses = {node_id: node.kafka for node_id, node in self.nodes.items()}
        self.partitions: dict[int, int] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            for node in self.nodes.values():
                node.begin()
            for node in self.nodes.values():
                node.wait_ready(time.monotonic() + START_SECONDS_MAX)
            yield
        finally:
            for node in self.nodes.values():
                node.stop()
            for node in self.nodes.values():
                node.wait_stopped(time.monotonic() + 10)

    def get(self, node_id: int, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.nodes[node_id].http}{path}", timeout=10) as answer:
            return json.loads(answer.read())

    def make_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap(self)})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(RECOVERY_SECONDS_MAX)
        for one in self.get(1, f"/v1/topics/{TOPIC}")["partitions"]:
            self.partitions.setdefault(one["write_group"], one["partition"])

    def leaders(self, asked: int) -> dict[int, int]:
        return {one["group"]: one["leader"] for one in self.get(asked, "/v1/cluster")["write_groups"]}

    def leads_metadata(self, node_id: int, asked: int) -> bool:
        return bool(self.get(asked, "/v1/cluster")["metadata_leader"] == node_id)

    def is_well(self) -> bool:
        for asked in self.nodes:
            view = self.get(asked, "/v1/cluster")
            if any(node["state"] != "alive" for node in view["nodes"]) or len(view["nodes"]) != len(self.nodes):
                return False
            for group in view["write_groups"]:
                if group["leader"] <= 0 or not all(replica["active"] for replica in group["replicas"]):
                    return False
                if any(replica["lag_blocks"] > 10 for replica in group["replicas"]):
                    return False
        return True

    def kill(self, node_id: int) -> float:
        process = self.nodes[node_id].process
        assert process is not None
        moment = time.monotonic()
        process.send_signal(signal.SIGKILL)
        return moment

    def start_again(self, node_id: int) -> None:
        self.launch_again(node_id)
        self.nodes[node_id].wait_ready(time.monotonic() + START_SECONDS_MAX)

    def launch_again(self, node_id: int) -> None:
        """Start the process of a killed node, and wait for nothing."""
        node = self.nodes[node_id]
        assert node.process is not None
        node.process.wait()
        node.begin()


class BrokersCluster(MainstemCluster):
    """Three nodes that store, and brokers in front of them, which are what is killed: a group is a partition. With
    `vanishing` a victim is stopped instead (SIGSTOP): it answers nothing and ends no connection, like a host that is
    gone."""

    name = "brokers"

    def __init__(self, directory: Path, settings: Sequence[str], brokers: int, *, vanishing: bool = False) -> None:
        super().__init__(directory, settings)
        self._vanishing = vanishing
        port = random.choice(PORTS)
        roles: dict[int, tuple[str, ...]] = dict.fromkeys(range(1, NODES + 1), ("storage", "nameserver"))
        roles |= dict.fromkeys(range(NODES + 1, NODES + brokers + 1), ("broker",))
        self.nodes = {
            node_id: DevNode(directory, node_id, port, NODES, ("pipeline.mode=off", *settings), roles=roles[node_id])
            for node_id in roles
        }
        self.addresses = {node_id: node.kafka for node_id, node in self.nodes.items() if node.serves_clients}

    def make_topic(self) -> None:
        super().make_topic()
        self.partitions = {partition: partition for partition in range(PARTITIONS)}

    def kill(self, node_id: int) -> float:
        if not self._vanishing:
            return super().kill(node_id)
        process = self.nodes[node_id].process
        assert process is not None
        moment = time.monotonic()
        process.send_signal(signal.SIGSTOP)
        return moment

    def start_again(self, node_id: int) -> None:
        """Clients that know no other broker than the one that was left are told of this one a while later."""
        if self._vanishing:
            super().kill(node_id)
        super().start_again(node_id)
        time.sleep(2 * SETTLED_SECONDS)

    def leaders(self, asked: int) -> dict[int, int]:
        admin = AdminClient({"bootstrap.servers": self.addresses[asked], "log_level": 0})
        topic = admin.list_topics(TOPIC, METADATA_SECONDS_MAX).topics[TOPIC]
        return {number: one.leader for number, one in topic.partitions.items()}


class KafkaCluster:
    """KRaft, each node broker and controller, `min.insync.replicas` 2, its defaults otherwise."""

    name = "kafka"

    def __init__(self, directory: Path, cache: Path) -> None:
        self._kafka = Kafka(cache)
        self._kafka.prepare()
        cores = tuple(sorted(os.sched_getaffinity(0)))
        self._setup = Setup(
            directory=directory, cpus=cores, cores_count=len(cores), durability=Durability.ASYNC,
            heap=KAFKA_HEAP, nodes=NODES,
        )  # fmt: skip
        layout = self._kafka.lay_out(self._setup)
        self._commands = dict(enumerate(layout.commands, 1))
        self.addresses = dict(enumerate(layout.addresses, 1))
        self.partitions = {partition: partition for partition in range(PARTITIONS)}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._admin = AdminClient({"bootstrap.servers": bootstrap(self), "log_level": 0})

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            for node_id in self.addresses:
                self._launch(node_id)
            for node_id in self.addresses:
                self._wait_ready(node_id)
            yield
        finally:
            for process in self._processes.values():
                process.kill()
            for process in self._processes.values():
                process.wait()

    def make_topic(self) -> None:
        topic = NewTopic(TOPIC, PARTITIONS, NODES)
        self._admin.create_topics([topic])[TOPIC].result(RECOVERY_SECONDS_MAX)

    def leaders(self, asked: int) -> dict[int, int]:
        return {number: one.leader for number, one in self._metadata().topics[TOPIC].partitions.items()}

    def leads_metadata(self, node_id: int, asked: int) -> bool | None:
        return None

    def is_well(self) -> bool:
        try:
            metadata = self._metadata()
        except KafkaException:
            return False
        partitions = metadata.topics[TOPIC].partitions.values()
        return len(metadata.brokers) == NODES and all(one.leader > 0 and len(one.isrs) == NODES for one in partitions)

    def kill(self, node_id: int) -> float:
        moment = time.monotonic()
        self._processes[node_id].kill()
        return moment

    def start_again(self, node_id: int) -> None:
        self._processes[node_id].wait()
        self._launch(node_id)
        self._wait_ready(node_id)

    def _launch(self, node_id: int) -> None:
        self._processes[node_id] = launch(self._setup, self._commands[node_id], os.environ)

    def _wait_ready(self, node_id: int) -> None:
        address = self.addresses[node_id]
        wait_until(lambda: brokers_of(address) == NODES, f"node {node_id} of Kafka", KAFKA_START_SECONDS_MAX)

    def _metadata(self) -> ClusterMetadata:
        return self._admin.list_topics(TOPIC, METADATA_SECONDS_MAX)
