"""The configs that are set for client metrics, consumer groups and brokers. No I/O; whoever changes the table has
logged the change before.

`check` refuses a change before it is logged, against what is set already; `change` trusts that it was checked, so that
rules may be tightened later. `version` is another object after every change: whoever keeps answers keeps it with them,
and compares by identity.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from mainstem.model import ResourceType
from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.state.config_value import DeclaredConfig, unknown_config
from mainstem.nameserver.state.resource_configs.broker_configs import (
    BROKER_CONFIGS,
    broker_name_fault,
    check_broker,
)
from mainstem.nameserver.state.resource_configs.client_metrics_configs import (
    CLIENT_METRICS_CONFIGS,
    check_subscription,
)
from mainstem.nameserver.state.resource_configs.group_configs import GROUP_CONFIGS, check_group, group_name_fault

RESOURCES_MAX = 10_000
"""Resources of a kind for which something is set: each takes a kilobyte or two, and a line of each snapshot."""
SUBSCRIPTIONS_MAX = 100
"""The same of client metrics: a client that asks what to push is matched with each of them."""
NAME_LENGTH_MAX = 249
"""As of a topic, and what tools show in one line."""
TEXT_LENGTH_MAX = 4096
"""Characters of all values of one resource."""

_METRICS_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class ResourceRules(NamedTuple):
    """The configs that may be set for resources of one kind."""

    configs: Mapping[str, DeclaredConfig]
    name_fault: Callable[[str], str | None]
    """Says in words what is wrong with the name of a resource."""
    check: Callable[[Mapping[str, str]], None]
    """Raises `InvalidConfig` for values that do not go together."""
    most: int = RESOURCES_MAX
    """Resources of the kind for which something may be set."""


def _metrics_name_fault(name: str) -> str | None:
    if _METRICS_NAME.fullmatch(name) and name not in (".", ".."):
        return None
    return "a subscription's name has letters, digits, '.', '_' and '-'"


RULES: Mapping[ResourceType, ResourceRules] = {
    ResourceType.BROKER: ResourceRules(BROKER_CONFIGS, broker_name_fault, check_broker),
    ResourceType.GROUP: ResourceRules(GROUP_CONFIGS, group_name_fault, check_group),
    ResourceType.CLIENT_METRICS: ResourceRules(
        CLIENT_METRICS_CONFIGS, _metrics_name_fault, check_subscription, SUBSCRIPTIONS_MAX
    ),
}


class ConfigTable:
    def __init__(self) -> None:
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self.version = object()

    def __iter__(self) -> Iterator[tuple[tuple[int, str], Mapping[str, str]]]:
        """All that is set, by Kafka's resource type and name. Copy it before an await."""
        return iter(self._configs.items())

    def of(self, kind: int, name: str) -> Mapping[str, str]:
        return self._configs.get((kind, name), {})

    def names(self, kind: int) -> list[str]:
        return [name for its_kind, name in self._configs if its_kind == kind]

    def of_kind(self, kind: int) -> dict[str, Mapping[str, str]]:
        """The configs of all resources of a kind for which some are set."""
        return {name: configs for (its_kind, name), configs in self._configs.items() if its_kind == kind}

    def check(self, kind: int, name: str, changes: Mapping[str, str | None]) -> None:
        """Raises `InvalidConfig`."""
        rules = RULES.get(ResourceType(kind)) if kind in set(ResourceType) else None
        if rules is None:
            raise InvalidConfig(f"resources of type {kind} have no configs here that could be set")
        if len(name) > NAME_LENGTH_MAX or (fault := rules.name_fault(name)) is not None:
            fault = f"a name has at most {NAME_LENGTH_MAX} characters" if len(name) > NAME_LENGTH_MAX else fault
            raise InvalidConfig(f"{name[:100]!r} is no name of such a resource: {fault}")
        for key, value in changes.items():
            declared = rules.configs.get(key)
            if declared is None:
                raise unknown_config("config", key, rules.configs)
            if value is not None:
                declared.parse(value)
        after = self.after(kind, name, changes)
        if sum(map(len, after.values())) > TEXT_LENGTH_MAX:
            raise InvalidConfig(f"the values of one resource have at most {TEXT_LENGTH_MAX} characters together")
        rules.check(after)
        if after and (kind, name) not in self._configs and len(self.names(kind)) >= rules.most:
            what = ResourceType(kind).name.lower().replace("_", " ")
            raise InvalidConfig(f"the cluster has configs of {rules.most} {what}, and takes no more: remove some")

    def change(self, kind: int, name: str, changes: Mapping[str, str | None]) -> None:
        """Set configs (value) and remove them (None)."""
        if after := self.after(kind, name, changes):
            self._configs[kind, name] = after
        else:
            self._configs.pop((kind, name), None)
        self.version = object()

    def after(self, kind: int, name: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """The configs of a resource as they would be."""
        kept = {**self._configs.get((kind, name), {}), **changes}
        return {key: value for key, value in kept.items() if value is not None}
