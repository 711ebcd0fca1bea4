"""The numbers that clients have pushed, as samples of this node's metrics.

Clients choose names, labels and numbers, so all of them are bounded: series of a client, of an address (half of all)
and of all clients, distinct names, labels of a series and the length of each. A number beyond a bound, or that the
client was not asked for, is dropped and counted, never an error of the client. A name keeps the kind under which it
came first, as the format of the metrics demands.

A client's push takes the place of its last one in one step: `samples` may be called from another thread at any time.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from mainstem.broker.telemetry.otlp import Attributes, Point
from mainstem.model import Sample
from mainstem.nameserver.state.resource_configs.client_metrics_configs import ALL_METRICS

SERIES_OF_CLIENT_MAX = 2_000
"""A client that reads a few hundred partitions has as many."""
NAMES_MAX = 1_000
"""Kafka's Java clients know about two hundred metrics."""
LABELS_MAX = 16
LABEL_LENGTH_MAX = 128
PREFIX = "mainstem_client_"
_KAFKAS = "org.apache.kafka."
_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_]+")

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]


class PushingClient(NamedTuple):
    """The client that pushed."""

    instance_id: UUID
    client_id: str
    software: str
    host: str


class _Value(NamedTuple):
    number: float
    since_last: bool


class ClientSeries:
    """The series of one push, while it is read."""

    def __init__(self, kept: PushedMetrics, who: PushingClient, wanted: Sequence[str]) -> None:
        """`wanted`: the beginnings of the names that the client was asked for."""
        self._kept = kept
        self._who = who
        self._wanted = () if ALL_METRICS in wanted else tuple(wanted)
        kept.forget_names()
        self._before = kept.of(who.instance_id)
        self._values: dict[Series, _Value] = {}
        self._of_attributes: dict[Attributes, Labels] = {}

    def add(self, point: Point) -> None:
        if self._wanted and not point.name.startswith(self._wanted):
            self._kept.dropped["not asked for"] += 1
            return
        name = self._kept.name_of(point)
        if name is None or not math.isfinite(point.value):
            self._kept.dropped["name" if name is None else "number"] += 1
            return
        labels = self._of_attributes.get(point.attributes)
        if labels is None:
            labels = self._of_attributes[point.attributes] = labels_of(self._who, point.attributes)
        series, number = (name, labels), point.value
        if series not in self._values and len(self._values) >= SERIES_OF_CLIENT_MAX:
            self._kept.dropped["series"] += 1
            return
        if point.since_last and point.adds_up:
            before = self._values.get(series) or self._before.get(series)
            number += before.number if before is not None and before.since_last else 0.0
        self._values[series] = _Value(number, point.since_last and point.adds_up)

    def publish(self) -> None:
        """Have it take the place of the client's last push. Sums stay that were not pushed
        again."""
        for series, value in self._before.items():
            if value.since_last and series not in self._values and len(self._values) < SERIES_OF_CLIENT_MAX:
                self._values[series] = value
        self._kept.put(self._who, self._values)


class PushedMetrics:
    def __init__(self, series_max: int) -> None:
        self._series_max = series_max
        self._by_client: dict[UUID, dict[Series, _Value]] = {}
        self._hosts: dict[UUID, str] = {}
        self._of_host: Counter[str] = Counter()
        self._total = 0
        self._kinds: dict[str, tuple[str, str]] = {}
        """By name its kind, and what clients call it."""
        self.dropped: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._total

    def of(self, instance_id: UUID) -> dict[Series, _Value]:
        return self._by_client.get(instance_id, {})

    def put(self, who: PushingClient, values: dict[Series, _Value]) -> None:
        self.forget(who.instance_id)
        room = min(self._series_max - self._total, self._series_max // 2 - self._of_host[who.host])
        if len(values) > room:
            self.dropped["series"] += len(values) - room
            values = dict(list(values.items())[:room])
        if values:
            self._by_client[who.instance_id], self._hosts[who.instance_id] = values, who.host
            self._total += len(values)
            self._of_host[who.host] += len(values)

    def forget(self, instance_id: UUID) -> None:
        if (values := self._by_client.pop(instance_id, None)) is None:
            return
        host = self._hosts.pop(instance_id)
        self._total -= len(values)
        self._of_host[host] -= len(values)
        if not self._of_host[host]:
            del self._of_host[host]

    def forget_names(self) -> None:
        """Forget the kinds of names that no client pushes any more, when there are too many."""
        if len(self._kinds) >= NAMES_MAX:
            used = {name for values in self._by_client.values() for name, _ in values}
            self._kinds = {name: known for name, known in self._kinds.items() if name in used}

    def name_of(self, point: Point) -> str | None:
        """The name among this node's metrics; None: it has none, or another kind, or there are too
        many."""
        told = point.name.removeprefix(_KAFKAS)
        kind, plain = "gauge", _NOT_ALLOWED.sub("_", told).strip("_").lower()
        if not plain:
            return None
        name = PREFIX + plain
        if point.adds_up:
            kind, name = "counter", name.removesuffix("_total") + "_total"
        known = self._kinds.get(name)
        if known is None:
            if len(self._kinds) >= NAMES_MAX:
                return None
            known = self._kinds[name] = kind, f"Clients push it as {point.name[:LABEL_LENGTH_MAX]!r}."
        return name if known[0] == kind else None

    def samples(self, is_heard: Callable[[UUID], bool]) -> Iterator[Sample]:
        """Those of clients of which something is heard. Safe to call from another thread."""
        kinds = self._kinds
        for instance_id, values in list(self._by_client.items()):
            if not is_heard(instance_id):
                continue
            for (name, labels), value in values.items():
                kind, help_text = kinds.get(name, ("", ""))
                if kind:
                    yield Sample(name, kind, help_text, value.number, labels, names_users=True)
        for reason, count in sorted(self.dropped.copy().items()):
            text = "Numbers that clients pushed and this node did not keep, by what was wrong or too much."
            yield Sample("mainstem_telemetry_dropped_total", "counter", text, count, (("reason", reason),))


def labels_of(who: PushingClient, attributes: Iterable[tuple[str, str]]) -> Labels:
    """The labels of a series: who pushed it comes before what it says of itself."""
    labels = {
        "client_instance_id": str(who.instance_id),
        "client_id": who.client_id[:LABEL_LENGTH_MAX],
        "client_software": who.software[:LABEL_LENGTH_MAX],
    }
    own = len(labels)
    for key, text in attributes:
        label = _NOT_ALLOWED.sub("_", key).strip("_")[:LABEL_LENGTH_MAX]
        if label and not label[0].isdigit() and len(labels) < own + LABELS_MAX:
            labels.setdefault(label, text[:LABEL_LENGTH_MAX])
    return tuple(labels.items())
