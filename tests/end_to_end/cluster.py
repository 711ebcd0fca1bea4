"""Several real nodes that make one cluster, for tests that mistreat them one by one.

Each node is a `Serving` with its own directories. Their ports are chosen beforehand, since every node has to be told
the others' addresses. With `wired`, what the nodes say to each other passes through `Wires` and can be cut.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.end_to_end.namespaces import Network
from tests.end_to_end.wires import Wires
from tests.harness.free_port import HOST, free_port
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually


class Cluster:
    """Nodes 1 to `count`. `start`, then whatever is done to them; `close` leaves nothing running, whatever that was."""

    def __init__(
        self,
        root: Path,
        *settings: str,
        count: int = 3,
        wired: bool = False,
        network: Network | None = None,
        write_dir: Callable[[int], Path] | None = None,
        program: str | None = None,
        roles: Mapping[int, str] | None = None,
    ) -> None:
        """`network`: where each node has the host of its number; `write_dir`: where another disk 1 than a directory
        below `root` is wanted; `program`: the module that every node runs, if not `mainstem`'s own; `roles`: of
        nodes that do not have all of them."""
        ids = range(1, count + 1)
        hosts = {node_id: HOST if network is None else network.hosts[node_id].address for node_id in ids}
        inner = {node_id: (hosts[node_id], free_port()) for node_id in ids}
        outer = {node_id: (HOST, free_port()) for node_id in ids} if wired else inner
        self.wires = Wires(outer, inner) if wired else None
        roles = roles or {}
        self._no_brokers = {node_id for node_id, given in roles.items() if "broker" not in given}
        peers = json.dumps(
            {
                str(node_id): f"{host}:{port}"
                for node_id, (host, port) in outer.items()
                if "nameserver" in roles.get(node_id, "nameserver")
            }
        )
        self.nodes: dict[int, Serving] = {}
        for node_id in ids:
            node = Serving(root / f"node-{node_id}", f"node_id={node_id}", f"nameserver.peers={peers}", *settings)
            if node_id in roles:
                node.settings += (f"roles={roles[node_id]}",)
            node.kafka = f"{hosts[node_id]}:{free_port()}"
            node.http = f"{hosts[node_id]}:{free_port()}"
            node.rpc = f"{hosts[node_id]}:{inner[node_id][1]}"
            if network is not None:
                node.settings += ("allow_open=kafka,http,rpc",)  # hosts of the test's own network reach it
                node.within = network.hosts[node_id].entered
            if program is not None:
                node.program = program
            if write_dir is not None:
                node.write_dir = write_dir(node_id)
            self.nodes[node_id] = node
        self.running: set[int] = set()
        """Those that answer: started, and not stopped, killed or frozen since."""
        self._frozen: set[int] = set()

    # --- what is done to nodes ------------------------------------------------------------------------------

    def start(self, *node_ids: int) -> Cluster:
        """Start these together, or all; returns when they accept clients."""
        ids = node_ids or tuple(self.nodes)
        if self.wires is not None and not self.wires.started:
            self.wires.start()
        with ThreadPoolExecutor(len(ids)) as threads:
            list(threads.map(lambda node_id: self.nodes[node_id].start(), ids))
        self.running.update(ids)
        return self

    def kill(self, *node_ids: int) -> None:
        """SIGKILL, all at the same moment."""
        for node_id in node_ids:
            os.kill(self.nodes[node_id].pid, signal.SIGKILL)
        for node_id in node_ids:
            self.nodes[node_id].kill()
        self.running.difference_update(node_ids)

    def stop(self, node_id: int) -> None:
        """SIGTERM; returns when it has ended, and ended well."""
        assert self.nodes[node_id].stop() == 0, self.nodes[node_id].output
        self.running.discard(node_id)

    def ended(self, node_id: int) -> int:
        """Wait until a node has ended by itself; its exit code."""
        code = self.nodes[node_id].wait()
        self.running.discard(node_id)
        return code

    def freeze(self, node_id: int) -> None:
        """SIGSTOP: its sockets stay open and nobody answers."""
        os.kill(self.nodes[node_id].pid, signal.SIGSTOP)
        self._frozen.add(node_id)
        self.running.discard(node_id)

    def thaw(self, node_id: int) -> None:
        os.kill(self.nodes[node_id].pid, signal.SIGCONT)
        self._frozen.discard(node_id)
        self.running.add(node_id)

    def close(self) -> None:
        """Kill what is left: how nodes stop is told where they are stopped."""
        for node_id in tuple(self._frozen):
            self.thaw(node_id)
        if self.wires is not None and self.wires.started:
            self.wires.mend()
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(Serving.drop, self.nodes.values()))
        if self.wires is not None and self.wires.started:
            self.wires.close()

    # --- what can be known of them --------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """All brokers, whether they run or not."""
        return ",".join(node.kafka for node_id, node in self.nodes.items() if node_id not in self._no_brokers)

    def others(self, node_id: int) -> list[int]:
        return [other for other in self.nodes if other != node_id]

    def get(self, path: str, node_id: int | None = None) -> Any:
        """A JSON answer of a node that runs."""
        return self.nodes[min(self.running) if node_id is None else node_id].get(path)

    def views(self) -> dict[int, Any]:
        """Running node → the cluster as it knows it. All are asked at the same time: a node that does not hear another
        waits for it before it answers."""
        asked = sorted(self.running)
        with ThreadPoolExecutor(len(asked)) as threads:
            return dict(zip(asked, threads.map(partial(self.get, "/v1/cluster"), asked), strict=True))

    def create_topic(self, name: str, partitions: int, *, copies: int = -1, **configs: str) -> None:
        """Returns when every running node knows it and who leads each of its partitions."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **KEEP_TRYING})
        config = {key.replace("_", "."): value for key, value in configs.items()}
        topic = NewTopic(name, partitions, copies, config=config)
        admin.create_topics([topic], request_timeout=PATIENCE_SECONDS)[name].result(PATIENCE_SECONDS)

        def known(node_id: int) -> bool:
            view = self._topic(name, node_id)
            return view is not None and all(one["leader"] > 0 for one in view["partitions"])

        eventually(lambda: all(map(known, self.running)), seconds=PATIENCE_SECONDS, what=f"topic {name}")

    def leader(self, topic: str, partition: int, *, asked: int | None = None) -> int:
        """The leader of a partition, as a running node knows it; -1: it knows of none."""
        view = self._topic(topic, min(self.running) if asked is None else asked)
        assert view is not None, f"topic {topic} is unknown"
        leader: int = view["partitions"][partition]["leader"]
        return leader

    def leader_other_than(self, node_id: int, topic: str, partition: int, *, asked: int) -> int:
        """Wait until a node knows another leader."""

        def other() -> int:
            leader = self.leader(topic, partition, asked=asked)
            return leader if leader not in (-1, node_id) else 0

        found: int = eventually(other, seconds=PATIENCE_SECONDS, what=f"a leader other than node {node_id}")
        return found

    def led_by(self, node_id: int, topic: str) -> list[int]:
        """The partitions of a topic that a node leads, as a running node knows."""
        view = self._topic(topic, min(self.running))
        assert view is not None, f"topic {topic} is unknown"
        return [one["partition"] for one in view["partitions"] if one["leader"] == node_id]

    def metadata_leader(self, asked: int | None = None) -> int:
        """The metadata's leader, as a running node knows it; -1: it knows of none."""
        found: int = self.get("/v1/cluster", asked)["metadata_leader"]
        return found

    def not_dead(self, asked: int) -> set[int]:
        """The nodes that a running one does not hold for dead."""
        return not_dead(self.get("/v1/cluster", asked))

    def terms(self, asked: int | None = None) -> dict[int, tuple[int, int]]:
        """Write group → (leader, term), as a running node knows."""
        return terms(self.get("/v1/cluster", asked))

    def wait_until_well(self) -> None:
        """Every node says: all nodes live, all groups have the same leader everywhere, no replica lacks anything."""
        assert self.running == set(self.nodes), f"only nodes {sorted(self.running)} run"
        ailments: list[str] = []

        def well() -> bool:
            ailments[:] = self._ailments()
            return not ailments

        try:
            eventually(well, seconds=PATIENCE_SECONDS, what="a well cluster")
        except AssertionError as error:
            raise AssertionError("; ".join(ailments)) from error

    def _ailments(self) -> Iterator[str]:
        leaders: dict[int, tuple[int, int]] = {}
        for asked, view in self.views().items():
            alive = {node["node_id"] for node in view["nodes"] if node["state"] == "alive"}
            if alive != set(self.nodes):
                yield f"node {asked} knows nodes {sorted(alive)} to be alive"
            for group in view["write_groups"]:
                number, leader = group["group"], (group["leader"], group["term"])
                if leader[0] <= 0 or leaders.setdefault(number, leader) != leader:
                    yield f"node {asked}: write group {number} is led by {leader}, elsewhere {leaders.get(number)}"
                for replica in group["replicas"]:
                    if replica["lag_blocks"] != 0 or not replica["active"]:
                        yield f"node {asked}: write group {number} at node {replica['node']} is {replica}"

    def _topic(self, name: str, asked: int) -> Any:
        """None: the node does not know it."""
        try:
            return self.nodes[asked].get(f"/v1/topics/{name}")
        except HTTPError as error:
            if error.code == 404:
                return None
            raise


@contextmanager
def well(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster started and well; at the end it is closed, whatever was done to it."""
    try:
        cluster.start().wait_until_well()
        yield cluster
    finally:
        cluster.close()


def not_dead(view: Any) -> set[int]:
    """The nodes that whoever has this view of the cluster does not hold for dead."""
    return {node["node_id"] for node in view["nodes"] if node["state"] != "dead"}


def terms(view: Any) -> dict[int, tuple[int, int]]:
    """Write group → (leader, term) in a view of the cluster."""
    return {group["group"]: (group["leader"], group["term"]) for group in view["write_groups"]}
