"""The metrics that a client is asked for: the union of all subscriptions whose selectors match it, at the shortest of
their intervals.

Subscriptions are configs of the metadata (`client_metrics_configs.py`), parsed anew when they have changed. Two nodes
with the same configs give a client the same id of its subscription.
"""

from __future__ import annotations

import importlib
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from mainstem.model import ResourceType
from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.state.resource_configs.client_metrics_configs import (
    ALL_METRICS,
    CLIENT_METRICS_CONFIGS,
    INTERVAL_MS,
    METRICS,
    selectors_of,
)
from mainstem.ports import ResourceConfigs

SELECTED_LENGTH_MAX = 256
"""Characters of a client's text that a regular expression is matched with; the client chooses them."""


class AskedOf(NamedTuple):
    """The metrics that a client is asked for, if any."""

    metrics: tuple[str, ...]
    interval_ms: int

    def id_for(self, instance: UUID) -> int:
        """As Kafka's: a 32-bit number that changes with what is asked for."""
        text = f"{self.interval_ms}:{','.join(self.metrics)}".encode()
        number = zlib.crc32(text) ^ zlib.crc32(instance.bytes)
        return number - (1 << 32) if number >> 31 else number


class _Subscription(NamedTuple):
    matches: Mapping[str, Callable[[str], Any]]
    metrics: tuple[str, ...]
    interval_ms: int


class Subscriptions:
    def __init__(self, configs: ResourceConfigs) -> None:
        self._configs = configs
        self._version: object = None
        self._parsed: list[_Subscription] = []

    def asked_of(self, client: Mapping[str, str]) -> AskedOf:
        """The node asks a client for these; `client`: by selector what it is."""
        if self._version is not (version := self._configs.version()):
            self._parsed, self._version = self._parse(), version
        found = [it for it in self._parsed if it.metrics and _selects(it.matches, client)]
        if not found:
            return AskedOf((), int(CLIENT_METRICS_CONFIGS[INTERVAL_MS].default))
        names = {name for it in found for name in it.metrics}
        metrics = (ALL_METRICS,) if ALL_METRICS in names else tuple(sorted(names))
        return AskedOf(metrics, min(it.interval_ms for it in found))

    def _parse(self) -> list[_Subscription]:
        parsed = []
        for name in self._configs.names(ResourceType.CLIENT_METRICS):
            configs = self._configs.of(ResourceType.CLIENT_METRICS, name)
            try:
                selectors = {key: _matcher(text) for key, text in selectors_of(configs).items()}
                metrics, interval_ms = (
                    CLIENT_METRICS_CONFIGS[key].parse(configs.get(key, CLIENT_METRICS_CONFIGS[key].default))
                    for key in (METRICS, INTERVAL_MS)
                )
            except InvalidConfig:
                continue  # a later version took it, whose rules are others
            assert isinstance(metrics, tuple)
            assert isinstance(interval_ms, int)
            parsed.append(_Subscription(selectors, metrics, interval_ms))
        return parsed


def _matcher(expression: str) -> Callable[[str], Any]:
    """Matches whole texts; by RE2, which no text makes slow, if the package is installed and takes the expression."""
    try:
        re2: Any = importlib.import_module("re2")
        options = re2.Options()
        options.log_errors = False
        matcher: Callable[[str], Any] = re2.compile(expression, options).fullmatch
    except Exception:  # the package is missing, or knows less than Python's
        matcher = re.compile(expression).fullmatch
    return matcher


def _selects(matches: Mapping[str, Callable[[str], Any]], client: Mapping[str, str]) -> bool:
    return all(match(client.get(key, "")[:SELECTED_LENGTH_MAX]) is not None for key, match in matches.items())
