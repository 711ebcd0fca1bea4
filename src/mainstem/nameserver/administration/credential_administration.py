"""The broker looks at users' credentials, and changes them, through its own node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mainstem.errors import MainstemError
from mainstem.model import ScramChange, ScramCredential, ScramMechanism
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.nameserver.requests import Requests
from mainstem.rpc.messages.metadata import WantCredentials, WantedCredential

SECRET_BYTES = 32
CREDENTIALS_TOGETHER_MAX = 500
"""Credentials of one change, which is one log entry: with the longest names and salts it has less than half a MB."""


class MetadataCredentials:
    """Implements `ports.Credentials`: has the metadata leader make changes, and returns once this node has applied
    them. `random_bytes`: unpredictable ones, as many as asked for."""

    def __init__(self, lookups: MetadataLookups, requests: Requests, random_bytes: Callable[[int], bytes]) -> None:
        self._requests = requests
        self._lookups = lookups
        self._random_bytes = random_bytes

    def scram_credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._lookups.scram_credential(user, mechanism)

    def scram_users(self) -> Mapping[str, Sequence[ScramCredential]]:
        return self._lookups.scram_users()

    def absent_users_secret(self) -> bytes:
        return self._lookups.absent_users_secret()

    async def change_scram(self, changes: Sequence[ScramChange], *, first: bool = False) -> list[MainstemError | None]:
        outcomes: list[MainstemError | None] = []
        for start in range(0, len(changes), CREDENTIALS_TOGETHER_MAX):
            part = [_wanted(change) for change in changes[start : start + CREDENTIALS_TOGETHER_MAX]]
            outcome = await self._requests.change(WantCredentials(part, self._random_bytes(SECRET_BYTES), first))
            outcomes += [item if isinstance(item, NameserverError) else None for item in outcome.items]
        return outcomes


def _wanted(change: ScramChange) -> WantedCredential:
    user, mechanism, kept = change
    if kept is None:
        return WantedCredential(user, mechanism.value)
    return WantedCredential(user, mechanism.value, kept.salt, kept.iterations, kept.stored_key, kept.server_key)
