"""One look at a cluster: what `mainstem top` prints, and how it is put together from what nodes answer.

The views and metrics come over HTTP: of the cluster from the node that was named, figures from each node itself, all at
once, so that one that is silent delays the others by no more than `ANSWER_SECONDS`. Lags of consumer groups come over
Kafka; where that does not answer they are left out and the reason is told. Rates are differences of two looks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from mainstem.cli.clients.every_node import of_every_node
from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.errors import CommandLineError
from mainstem.console.views.of_cluster import ClusterView, DiskView, NodeView

if TYPE_CHECKING:
    from mainstem.cli.top.lags import ConsumerGroupLag

_SAMPLE = re.compile(r"^(mainstem_\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class Figures(NamedTuple):
    """Counters since the node started, and gauges. None where the node does not tell."""

    received_bytes: float | None = None
    sent_bytes: float | None = None
    requests: float | None = None
    connections: float | None = None
    unsplit_bytes: float | None = None
    journal_bytes: float | None = None
    store_bytes: float | None = None
    shared_store_bytes: float | None = None


_NAMES = (
    "mainstem_server_received_bytes_total",
    "mainstem_server_sent_bytes_total",
    "mainstem_server_request_frames_total",
    "mainstem_server_connections",
    "mainstem_split_lag_bytes",
    "mainstem_journal_bytes",
    "mainstem_queue_store_bytes",
    "mainstem_shared_store_bytes",
)
"""The sources of the fields of `Figures`, in their order."""


def figures_of(text: str) -> Figures:
    """The figures in a text of the Prometheus format; samples of one name that differ in labels are summed."""
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        sums[name] = sums.get(name, 0.0) + float(value)
    return Figures(*(sums.get(name) for name in _NAMES))


ANSWER_SECONDS = 3.0
"""A node that has not answered by then is shown as silent."""


class NodeLook(msgspec.Struct, frozen=True, kw_only=True):
    """None where the node does not answer, and for rates where it started between two looks."""

    node_id: int
    state: str
    """As the metadata leader judges; `silent` where it does not answer us."""
    received_bytes_per_second: float | None
    sent_bytes_per_second: float | None
    requests_per_second: float | None
    connections: int | None
    unsplit_bytes: int | None
    journal_bytes: int | None
    store_bytes: int | None
    """In the queue store: on its disk 2, or in the shared store, of which each node tells the whole."""
    leads: int
    """Write groups that it leads."""


class ConsumerGroupLook(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    state: str
    lag: int | None
    """Offsets not committed yet; None: it could not be asked for."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    time_ms: int
    seconds: float
    """Between this look and the one before: the time that rates are of."""
    cluster_id: str
    topics: int
    partitions: int
    write_groups: int
    write_groups_led: int
    nodes: Sequence[NodeLook]
    groups: Sequence[ConsumerGroupLook]
    """Those with the most lag first."""
    groups_left_out: int
    write_disk: DiskView | None
    """Of the node that was asked; None where it does not answer."""
    store_disk: DiskView | None
    shared_store: str | None
    """Its URL or directory; None: each node has a disk 2."""
    troubles: Sequence[str]
    """The questions that could not be asked, and why."""


class _Taken(NamedTuple):
    at: float
    figures: Mapping[int, Figures | None]


class Looks:
    """`begin` once, then `next` for every look."""

    def __init__(
        self,
        http: str,
        bootstrap: str,
        groups: Sequence[str],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        lags: Callable[[str, Sequence[str]], tuple[list[ConsumerGroupLag], int]] | None = None,
    ) -> None:
        from mainstem.cli.top.lags import lags_of

        self._http = http
        self._bootstrap = bootstrap
        self._groups = groups
        self._monotonic = monotonic
        self._lags = lags or lags_of
        self._cluster: ClusterView | None = None
        self._before = _Taken(0.0, {})

    def begin(self) -> None:
        """Take the first figures. Raises NodeUnreachable or RequestRefused where the named node does not answer."""
        self._cluster = HttpNode(self._http, timeout_seconds=ANSWER_SECONDS).get("/v1/cluster", ClusterView)
        self._before = self._taken(self._cluster.nodes)

    def next(self) -> Look:
        troubles: list[str] = []
        fresh: ClusterView | None = None
        try:
            fresh = HttpNode(self._http, timeout_seconds=ANSWER_SECONDS).get("/v1/cluster", ClusterView)
        except CommandLineError as error:
            troubles.append(str(error))
        cluster = fresh or self._cluster
        assert cluster is not None, "begin comes first"
        self._cluster = cluster
        before, taken = self._before, self._taken(cluster.nodes)
        self._before = taken
        seconds = taken.at - before.at
        groups: list[ConsumerGroupLag] = []
        left_out = 0
        try:
            groups, left_out = self._lags(self._bootstrap, self._groups)
        except CommandLineError as error:
            troubles.append(str(error))
        leaders = [group.leader for group in cluster.write_groups]
        return Look(
            time_ms=time.time_ns() // 1_000_000,
            seconds=round(seconds, 3),
            cluster_id=cluster.cluster_id,
            topics=cluster.topics,
            partitions=cluster.partitions,
            write_groups=len(leaders),
            write_groups_led=sum(leader >= 0 for leader in leaders),
            nodes=[
                _node_look(
                    node, before.figures.get(node.node_id), taken.figures.get(node.node_id), seconds,
                    leaders.count(node.node_id),
                )
                for node in sorted(cluster.nodes, key=lambda node: node.node_id)
            ],
            groups=[
                ConsumerGroupLook(group=group.group, state=group.state, lag=group.lag)
                for group in sorted(groups, key=lambda group: (-(group.lag or 0), group.group))
            ],
            groups_left_out=left_out,
            write_disk=fresh.write_disk if fresh else None,
            store_disk=fresh.store_disk if fresh else None,
            shared_store=cluster.shared_store,
            troubles=troubles,
        )  # fmt: skip

    def _taken(self, nodes: Sequence[NodeView]) -> _Taken:
        at = self._monotonic()
        return _Taken(at, of_every_node(self._http, nodes, _figures, timeout_seconds=ANSWER_SECONDS))


def _figures(node: HttpNode) -> Figures:
    """The report of a node on itself."""
    return figures_of(node.text("/metrics"))


def _node_look(node: NodeView, before: Figures | None, after: Figures | None, seconds: float, leads: int) -> NodeLook:
    first, second = before or Figures(), after or Figures()

    def rate(start: float | None, end: float | None) -> float | None:
        if start is None or end is None or end < start or seconds <= 0:
            return None
        return round((end - start) / seconds, 1)

    return NodeLook(
        node_id=node.node_id,
        state=node.state if after is not None or node.state != "alive" else "silent",
        received_bytes_per_second=rate(first.received_bytes, second.received_bytes),
        sent_bytes_per_second=rate(first.sent_bytes, second.sent_bytes),
        requests_per_second=rate(first.requests, second.requests),
        connections=_whole(second.connections),
        unsplit_bytes=_whole(second.unsplit_bytes),
        journal_bytes=_whole(second.journal_bytes),
        store_bytes=_whole(second.store_bytes if second.shared_store_bytes is None else second.shared_store_bytes),
        leads=leads,
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
