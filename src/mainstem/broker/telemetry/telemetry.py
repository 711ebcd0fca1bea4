"""Client telemetry of one node: tells clients what to push, and takes what they push into the node's metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple
from uuid import UUID, uuid4

from mainstem.broker.errors import BrokerError
from mainstem.broker.telemetry.client_instances import ClientInstances
from mainstem.broker.telemetry.otlp import MalformedTelemetry, OtlpReader
from mainstem.broker.telemetry.pushed_metrics import ClientSeries, PushedMetrics, PushingClient
from mainstem.broker.telemetry.subscriptions import AskedOf, Subscriptions
from mainstem.model import Sample
from mainstem.ports import Clock, ResourceConfigs, Session
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.records.compression import Compression, compression_of, decompress
from mainstem.turns import Turns

ACCEPTED = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
"""The best first; a client may push without compression as well."""
INFLATION_MAX = 4
"""A push decompresses to so many times the most that may be pushed."""
FIELDS_PER_TURN = 1_000
"""Read within one turn of the event loop: about a millisecond."""


class PushRefused(BrokerError):
    """A push is not taken; the client gets `code`."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.message)
        self.code = code


class TelemetryClient(NamedTuple):
    """A client as it comes with a request."""

    client_id: str
    session: Session

    def selected_by(self, instance_id: UUID) -> dict[str, str]:
        """By selector what the client is."""
        return {
            "client_instance_id": str(instance_id),
            "client_id": self.client_id,
            "client_software_name": self.session.software_name,
            "client_software_version": self.session.software_version,
            "client_source_address": self.session.host,
            "client_source_port": str(self.session.port),
        }


class SubscriptionAnswer(NamedTuple):
    instance_id: UUID
    subscription_id: int
    asked: AskedOf


class Telemetry:
    """`bytes_max`: of one push, compressed; `series_max`: of all clients together."""

    def __init__(
        self,
        configs: ResourceConfigs,
        clock: Clock,
        turns: Turns,
        *,
        bytes_max: int,
        clients_max: int,
        series_max: int,
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self.bytes_max = bytes_max
        self._subscriptions = Subscriptions(configs)
        self._instances = ClientInstances(clients_max)
        self._metrics = PushedMetrics(series_max)
        self._clock = clock
        self._turns = turns
        self._new_id = new_id
        self._pushes: dict[str, int] = {}

    def subscription(self, client: TelemetryClient, instance_id: UUID) -> SubscriptionAnswer:
        """Say what the client is to push. Raises `PushRefused`."""
        if instance_id.int == 0:
            instance_id = self._new_id()
        asked = self._subscriptions.asked_of(client.selected_by(instance_id))
        now_s, known = self._clock.monotonic(), self._instances.get(instance_id)
        if known is not None and not known.may_ask(now_s):
            raise PushRefused(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        instance = self._instances.heard(instance_id, asked.interval_ms)
        instance.asks(now_s)
        self._forget(now_s)
        return SubscriptionAnswer(instance_id, asked.id_for(instance_id), asked)

    async def push(
        self, client: TelemetryClient, instance_id: UUID, subscription_id: int, codec: int, data: bytes, *, last: bool
    ) -> None:
        """Take what a client pushes; `last`: it ends. Raises `PushRefused`."""
        try:
            await self._push(client, instance_id, subscription_id, codec, data, last=last)
        except PushRefused as refused:
            self._count(refused.code.name)
            if (instance := self._instances.get(instance_id)) is not None:
                instance.error = refused.code
            raise
        self._count("taken")

    async def _push(
        self, client: TelemetryClient, instance_id: UUID, subscription_id: int, codec: int, data: bytes, *, last: bool
    ) -> None:
        if instance_id.int == 0:
            raise PushRefused(ErrorCode.INVALID_REQUEST)
        now_s = self._clock.monotonic()
        asked = self._subscriptions.asked_of(client.selected_by(instance_id))
        instance = self._instances.heard(instance_id, asked.interval_ms)
        self._forget(now_s)
        if instance.is_ending:
            raise PushRefused(ErrorCode.INVALID_REQUEST)
        if not last and not instance.may_push(now_s):
            raise PushRefused(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        instance.pushes(now_s, last=last)
        if subscription_id != asked.id_for(instance_id):
            raise PushRefused(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        if len(data) > self.bytes_max:
            raise PushRefused(ErrorCode.TELEMETRY_TOO_LARGE)
        if codec != Compression.NONE and codec not in ACCEPTED:
            raise PushRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if not data or not asked.metrics:
            return
        who = PushingClient(
            instance_id,
            client.client_id,
            f"{client.session.software_name} {client.session.software_version}".strip(),
            client.session.host,
        )
        series, pace = ClientSeries(self._metrics, who, asked.metrics), self._turns.pace(FIELDS_PER_TURN)
        try:
            reader = OtlpReader(decompress(compression_of(codec), data, INFLATION_MAX * self.bytes_max))
            done = 0
            for point in reader.points():
                series.add(point)
                await pace.step(reader.fields_read - done)
                done = reader.fields_read
        except (ProtocolError, MalformedTelemetry):
            raise PushRefused(ErrorCode.INVALID_RECORD) from None
        if self._instances.get(instance_id) is instance:  # it may have been forgotten in between
            series.publish()

    def _forget(self, now_s: float) -> None:
        for gone in self._instances.forgotten(now_s):
            self._metrics.forget(gone)

    def _count(self, outcome: str) -> None:
        self._pushes[outcome] = self._pushes.get(outcome, 0) + 1

    def samples(self) -> Iterator[Sample]:
        """Safe to call from another thread."""
        for outcome, count in sorted(self._pushes.copy().items()):
            text = "Pushes of client telemetry, by how they were answered."
            yield Sample("mainstem_telemetry_pushes_total", "counter", text, count, (("outcome", outcome),))
        text = "Clients that asked for a telemetry subscription or pushed lately."
        yield Sample("mainstem_telemetry_clients", "gauge", text, len(self._instances))
        text = "Series that clients have pushed and this node keeps."
        yield Sample("mainstem_telemetry_series", "gauge", text, len(self._metrics))
        now_s = self._clock.monotonic()
        yield from self._metrics.samples(lambda instance_id: self._is_heard(instance_id, now_s))

    def _is_heard(self, instance_id: UUID, now_s: float) -> bool:
        instance = self._instances.get(instance_id)
        return instance is not None and now_s <= instance.silent_after_s()
