"""The broker changes access rules through its own node, as it changes topics: a call returns once this node has applied
the change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from mainstem.errors import MainstemError
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.requests import Requests
from mainstem.rpc.messages.metadata import WantAclRemovals, WantAcls, WantedAcl
from mainstem.security.acls.acl import Acl

RULES_TOGETHER_MAX = 250
"""Rules of one change, which is one log entry: with texts of the greatest length it has three MB."""


class AclAdministration:
    """Implements `AclAdmin`. `current`: waits until this node has applied all that was committed before the call."""

    def __init__(self, requests: Requests, current: Callable[[], Awaitable[None]]) -> None:
        self._requests = requests
        self._current = current

    async def current(self) -> None:
        await self._current()

    async def add_acls(self, acls: Sequence[Acl]) -> list[MainstemError | None]:
        return await self._change(WantAcls, acls)

    async def remove_acls(self, acls: Sequence[Acl]) -> list[MainstemError | None]:
        return await self._change(WantAclRemovals, acls)

    async def _change(self, want: type[WantAcls | WantAclRemovals], acls: Sequence[Acl]) -> list[MainstemError | None]:
        outcomes: list[MainstemError | None] = []
        for first in range(0, len(acls), RULES_TOGETHER_MAX):
            part = [WantedAcl(*acl) for acl in acls[first : first + RULES_TOGETHER_MAX]]
            outcome = await self._requests.change(want(part))
            outcomes += [item if isinstance(item, NameserverError) else None for item in outcome.items]
        return outcomes
