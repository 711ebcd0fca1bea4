"""Refuses or changes commands of the metadata whose topic is a tenant's. No I/O.

A topic's retention counts when it is set: a ceiling that is lowered later leaves the topics that there are. The rules
count the queues of a tenant when somebody first asks, and from then on with every change, until tenants change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from mainstem.model import Topic
from mainstem.nameserver.errors import InconsistentCommand, InvalidTenant, TenantCeiling
from mainstem.nameserver.state.commands import (
    AddPartitions,
    ChangeTopicConfigs,
    Command,
    CreateTopic,
    Event,
    PartitionsAdded,
    RemoveTenant,
    SetTenant,
    TopicCreated,
    TopicDeleted,
)
from mainstem.nameserver.state.topic_config import config_named
from mainstem.nameserver.state.topic_table import PendingChanges, TopicTable
from mainstem.security.tenants.tenant import Tenant, fault_of_tenant
from mainstem.security.tenants.tenant_table import TENANTS_MAX, TenantTable

RETENTION = "retention.ms"

Value = TypeVar("Value", str, str | None)


def tenant_of(command: SetTenant) -> Tenant:
    return Tenant(
        command.name, command.prefix, command.retention_ms_max, command.queues_max, tuple(command.users)
    )  # fmt: skip


class TenantRules:
    def __init__(self, topics: TopicTable) -> None:
        self.table = TenantTable()
        self._topics = topics
        self._queues: dict[str, int] = {}

    # before the log

    def check_tenant(self, command: SetTenant) -> None:
        tenant = tenant_of(command)
        if (fault := fault_of_tenant(tenant)) is not None:
            raise InvalidTenant(fault)
        other = self.table.with_prefix(tenant.prefix)
        if other is not None and other.name != tenant.name:
            raise InvalidTenant(f"the prefix {tenant.prefix!r} is that of tenant {other.name!r}: choose another one")
        if self.table.named(tenant.name) is None and len(self.table) >= TENANTS_MAX:
            raise InvalidTenant(f"the cluster has {TENANTS_MAX} tenants, and takes no more: remove some")

    def check_new(self, command: CreateTopic, pending: PendingChanges) -> None:
        tenant = self.table.owner(command.name)
        if tenant is None or command.internal:
            return
        self._check_retention(tenant, command.name, command.configs)
        self._check_queues(tenant, command.name, command.partitions + pending.queues_of_tenants[tenant.name])

    def check_more_partitions(self, command: AddPartitions) -> None:
        topic = self._topics.by_number[command.number]
        if (tenant := self.table.owner(topic.name)) is not None:
            self._check_queues(tenant, topic.name, command.total - topic.partitions)

    def check_configs(self, command: ChangeTopicConfigs) -> None:
        name = self._topics.by_number[command.number].name
        if (tenant := self.table.owner(name)) is not None:
            self._check_retention(tenant, name, command.changes)

    def check_default(self, topic: Topic) -> None:
        """A topic that has its settings from other defaults than before. Raises `TenantCeiling`."""
        tenant = self.table.owner(topic.name) if RETENTION not in topic.configs else None
        if tenant is not None and not topic.internal:
            self._check_retention(tenant, topic.name, {RETENTION: str(topic.settings.retention_ms)})

    def _check_retention(self, tenant: Tenant, name: str, configs: Mapping[str, str | None]) -> None:
        text, ceiling = configs.get(RETENTION), tenant.retention_ms_max
        if text is None or ceiling is None:
            return
        wanted = config_named(RETENTION).parse(text)
        assert isinstance(wanted, int)
        if not 0 <= wanted <= ceiling:
            raise TenantCeiling(
                f"topic {name!r}: {RETENTION}={wanted} is above the ceiling of tenant {tenant.name!r}, {ceiling}"
            )

    def _check_queues(self, tenant: Tenant, name: str, added: int) -> None:
        if tenant.queues_max is not None and (total := self.queues(tenant) + added) > tenant.queues_max:
            raise TenantCeiling(
                f"topic {name!r}: tenant {tenant.name!r} would have {total} partitions, more than its ceiling, "
                f"{tenant.queues_max}: delete topics, or have the ceiling raised"
            )

    def pend(self, command: Command, pending: PendingChanges) -> None:
        """Count a command that was checked and is not applied yet."""
        if isinstance(command, CreateTopic) and (tenant := self.table.owner(command.name)) is not None:
            pending.queues_of_tenants[tenant.name] += command.partitions

    def capped(self, name: str, configs: dict[str, Value]) -> dict[str, Value]:
        """The configs of a topic, or changes of them; the ceiling where they would leave a retention above it to the
        defaults."""
        tenant = self.table.owner(name)
        if tenant is None or tenant.retention_ms_max is None or configs.get(RETENTION) is not None:
            return configs
        default = self._topics.default_settings.retention_ms
        if 0 <= default <= tenant.retention_ms_max:
            return configs
        return {**configs, RETENTION: str(tenant.retention_ms_max)}

    def queues(self, tenant: Tenant) -> int:
        """How many queues a tenant has."""
        if tenant.name not in self._queues:
            self._queues[tenant.name] = sum(
                topic.partitions
                for topic in self._topics.by_name.values()
                if topic.name.startswith(tenant.prefix) and self.table.owner(topic.name) == tenant
            )
        return self._queues[tenant.name]

    # after the log

    def apply(self, command: SetTenant | RemoveTenant) -> None:
        if isinstance(command, SetTenant):
            tenant = tenant_of(command)
            other = self.table.with_prefix(tenant.prefix)
            if other is not None and other.name != tenant.name:
                raise InconsistentCommand(f"two tenants have the prefix {tenant.prefix!r}")
            self.table.set(tenant)
        else:
            self.table.remove(command.name)
        self._queues.clear()

    def follow(self, event: Event | None) -> None:
        """Count what became of a topic."""
        match event:
            case TopicCreated(topic=topic):
                added = topic.partitions
            case PartitionsAdded(topic=topic, first=first):
                added = topic.partitions - first
            case TopicDeleted(topic=topic):
                added = -topic.partitions
            case _:
                return
        tenant = self.table.owner(topic.name)
        if tenant is not None and tenant.name in self._queues:
            self._queues[tenant.name] += added

    def commands(self) -> list[SetTenant]:
        return [SetTenant(it.name, it.prefix, it.retention_ms_max, it.queues_max, list(it.users)) for it in self.table]
