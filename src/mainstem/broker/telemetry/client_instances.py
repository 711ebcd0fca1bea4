"""The clients that this node has heard of lately, and whether they may speak now. No I/O; times are handed in.

As Kafka: a client asks for its subscription and pushes, each no more often than the interval of its subscription, but
for its first push after it asked and its last one. All of it can be forgotten: a client that is not known begins anew.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from uuid import UUID

from mainstem.protocol.error_codes import ErrorCode

_NEVER = float("-inf")
_MAY_ASK_AT_ONCE = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})
"""Errors after which a client has to ask for its subscription again."""
INTERVALS_KEPT = 3
"""A client that was silent for so many of its intervals is forgotten, with what it pushed."""


@dataclass(slots=True)
class ClientInstance:
    interval_ms: int
    asked_s: float = _NEVER
    pushed_s: float = _NEVER
    asked_since_push: bool = False
    is_ending: bool = False
    error: ErrorCode = ErrorCode.NONE
    """The error of its last answer."""

    def silent_after_s(self) -> float:
        return max(self.asked_s, self.pushed_s) + INTERVALS_KEPT * self.interval_ms / 1000

    def may_ask(self, now_s: float) -> bool:
        return self.error in _MAY_ASK_AT_ONCE or self._interval_is_over(max(self.asked_s, self.pushed_s), now_s)

    def may_push(self, now_s: float) -> bool:
        return self.asked_since_push or self._interval_is_over(self.pushed_s, now_s)

    def asks(self, now_s: float) -> None:
        self.asked_s, self.asked_since_push, self.error = now_s, True, ErrorCode.NONE

    def pushes(self, now_s: float, *, last: bool) -> None:
        self.pushed_s, self.asked_since_push, self.error = now_s, False, ErrorCode.NONE
        self.is_ending = last

    def _interval_is_over(self, since_s: float, now_s: float) -> bool:
        return now_s - since_s >= self.interval_ms / 1000


class ClientInstances:
    """At most `clients_max` of them: who spoke longest ago goes first."""

    def __init__(self, clients_max: int) -> None:
        self._clients_max = clients_max
        self._by_id: OrderedDict[UUID, ClientInstance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, instance_id: UUID) -> ClientInstance | None:
        return self._by_id.get(instance_id)

    def heard(self, instance_id: UUID, interval_ms: int) -> ClientInstance:
        """The client, which speaks now; made if it is not known."""
        instance = self._by_id.get(instance_id)
        if instance is None:
            instance = self._by_id[instance_id] = ClientInstance(interval_ms)
        instance.interval_ms = interval_ms
        self._by_id.move_to_end(instance_id)
        return instance

    def forgotten(self, now_s: float) -> list[UUID]:
        """Forget those that are too many, or were silent for long; returns their ids. Those that spoke longest ago are
        looked at, until one is to be kept."""
        gone: list[UUID] = []
        while self._by_id:
            instance_id, oldest = next(iter(self._by_id.items()))
            if len(self._by_id) <= self._clients_max and now_s <= oldest.silent_after_s():
                break
            del self._by_id[instance_id]
            gone.append(instance_id)
        return gone
