"""Access rules in memory: `AclAdmin` over a table, every change of which is there at once."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.errors import MainstemError
from mainstem.security.acls.acl import Acl
from mainstem.security.acls.acl_admin import AclAdmin
from mainstem.security.acls.acl_table import AclTable
from mainstem.security.acls.authorizer import Authorizer
from mainstem.security.acls.config import AuthorizerConfig


class MemoryAcls(AclAdmin):
    """Tests may set `refuse` (what every call raises until it is None again), `refuse_changes` (what changes raise),
    `not_heard` (rules that were added elsewhere and arrive with `current`) and `unheard_seconds`."""

    def __init__(self, *acls: Acl) -> None:
        self.table = AclTable()
        self.refuse: Exception | None = None
        self.refuse_changes: Exception | None = None
        self.not_heard: list[Acl] = []
        self.unheard_seconds = 0.0
        for acl in acls:
            self.table.add(acl)

    def authorizer(self, *, super_users: str = "User:root", everyone: bool = False) -> Authorizer:
        config = AuthorizerConfig(enabled=True, super_users=super_users, allow_everyone_if_no_acl_found=everyone)
        config.validate()
        return Authorizer(config, lambda: self.table, lambda: self.unheard_seconds)

    async def current(self) -> None:
        self._refuse(self.refuse)
        while self.not_heard:
            self.table.add(self.not_heard.pop())

    async def add_acls(self, acls: Sequence[Acl]) -> list[MainstemError | None]:
        self._refuse(self.refuse or self.refuse_changes)
        for acl in acls:
            self.table.add(acl)
        return [None] * len(acls)

    async def remove_acls(self, acls: Sequence[Acl]) -> list[MainstemError | None]:
        self._refuse(self.refuse or self.refuse_changes)
        for acl in acls:
            self.table.remove(acl)
        return [None] * len(acls)

    def _refuse(self, refusal: Exception | None) -> None:
        if refusal is not None:
            raise refusal
