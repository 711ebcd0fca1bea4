"""Configs of what is no topic, in memory: `ports.ResourceConfigs` over the metadata's own table, so that refusals are
the real ones; every change is there at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainstem.model import ResourceType
from mainstem.nameserver.state.resource_configs.config_table import ConfigTable


class MemoryConfigs:
    def __init__(self) -> None:
        self.table = ConfigTable()

    def of(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        return self.table.of(kind, name)

    def names(self, kind: ResourceType) -> Sequence[str]:
        return self.table.names(kind)

    def version(self) -> object:
        return self.table.version

    async def change(
        self, kind: ResourceType, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        self.table.check(kind, name, changes)
        if not validate_only:
            self.table.change(kind, name, changes)

    def set(self, kind: ResourceType, name: str, **configs: str) -> None:
        """Underscores in config names stand for dots."""
        changes = {key.replace("_", "."): value for key, value in configs.items()}
        self.table.check(kind, name, changes)
        self.table.change(kind, name, changes)
