"""The seam between the broker, which is asked to change rules, and the metadata, which has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mainstem.errors import MainstemError
from mainstem.security.acls.acl import Acl


class AclAdmin(Protocol):
    """Changes to the rules. Each raises a `nameserver` error when all of them are refused; durable when it returns."""

    async def current(self) -> None:
        """Wait until this node has applied all changes that were made before the call."""
        ...

    async def add_acls(self, acls: Sequence[Acl]) -> list[MainstemError | None]:
        """Add rules; one that is there is no error. One entry per rule, in their order: None, or why it is refused."""
        ...

    async def remove_acls(self, acls: Sequence[Acl]) -> list[MainstemError | None]:
        """Remove rules; as `add_acls`. One that is not there is no error."""
        ...
