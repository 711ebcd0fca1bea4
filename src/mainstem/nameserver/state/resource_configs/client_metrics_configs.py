"""Kafka's configs of a subscription to what clients measure (KIP-714)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.state.config_value import ConfigType, DeclaredConfig

METRICS, INTERVAL_MS, MATCH = "metrics", "interval.ms", "match"
ALL_METRICS = "*"

SELECTORS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""By these a subscription picks clients, each with a regular expression that has to match the whole text."""

CLIENT_METRICS_CONFIGS: Mapping[str, DeclaredConfig] = {
    config.name: config
    for config in (
        DeclaredConfig(
            name=METRICS,
            type=ConfigType.LIST,
            default="",
            documentation="The metrics that clients push: names, or their beginnings; '*' is all of them.",
        ),
        DeclaredConfig(
            name=INTERVAL_MS,
            type=ConfigType.INT,
            default="300000",
            minimum=100,
            maximum=3_600_000,
            documentation="How often clients push.",
        ),
        DeclaredConfig(
            name=MATCH,
            type=ConfigType.LIST,
            default="",
            documentation="The clients that push: SELECTOR=REGULAR EXPRESSION, all of which have to match; none: all "
            f"clients. Selectors are {', '.join(SELECTORS)}.",
        ),
    )
}


def check_subscription(configs: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` for selectors that make no sense."""
    selectors_of(configs)


def selectors_of(configs: Mapping[str, str]) -> dict[str, str]:
    """By selector the regular expression that has to match. Raises `InvalidConfig`."""
    found: dict[str, str] = {}
    for item in cast(tuple[str, ...], CLIENT_METRICS_CONFIGS[MATCH].parse(configs.get(MATCH, ""))):
        selector, equals, expression = item.partition("=")
        if selector not in SELECTORS or not equals:
            raise InvalidConfig(
                f"{MATCH} has {item[:100]!r}; it takes SELECTOR=REGULAR EXPRESSION, of {', '.join(SELECTORS)}"
            )
        if selector in found:
            raise InvalidConfig(f"{MATCH} has {selector} twice")
        try:
            re.compile(expression)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidConfig(f"{MATCH}: {item[:100]!r} is no regular expression: {error}") from None
        found[selector] = expression
    return found
