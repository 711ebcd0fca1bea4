"""The broker changes configs of what is no topic through its own node, as it changes those of topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainstem.model import ResourceType
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.nameserver.requests import Requests
from mainstem.nameserver.state.commands import ChangeResourceConfigs
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.rpc.messages.metadata import WantResourceConfigs


class ConfigAdministration:
    """Implements `ports.ResourceConfigs`."""

    def __init__(self, lookups: MetadataLookups, requests: Requests, replica: MetadataReplica) -> None:
        self._lookups = lookups
        self._requests = requests
        self._replica = replica

    def of(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        return self._lookups.resource_configs().of(kind, name)

    def names(self, kind: ResourceType) -> Sequence[str]:
        return self._lookups.resource_configs().names(kind)

    def version(self) -> object:
        return self._lookups.resource_configs().version

    async def change(
        self, kind: ResourceType, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        if validate_only:
            self._replica.state.check(ChangeResourceConfigs(int(kind), name, dict(changes)))
            return
        (outcome,) = (await self._requests.change(WantResourceConfigs(int(kind), name, dict(changes)))).items
        if isinstance(outcome, NameserverError):
            raise outcome
