"""The users of a cluster in memory. The table is the nameserver's own, so that refusals are the real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainstem.errors import MainstemError
from mainstem.model import ScramChange, ScramCredential, ScramMechanism
from mainstem.nameserver.errors import CredentialRefused, NameserverError
from mainstem.nameserver.state.commands import RemoveScramCredential
from mainstem.nameserver.state.scram_table import ScramTable, set_command
from mainstem.nameserver.state.topic_table import PendingChanges
from mainstem.security.sasl.credentials import made_of

SECRET = b"the cluster's secret, in which nobody can look"


class FakeCredentials:
    """`ports.Credentials`. Tests may set `refuse`: what every change raises until it is None again."""

    def __init__(self) -> None:
        self.refuse: MainstemError | None = None
        self._table = ScramTable()

    def add(
        self,
        user: str,
        password: str,
        mechanism: ScramMechanism = ScramMechanism.SHA_256,
        *,
        salt: bytes = b"a salt of sixteen",
        iterations: int = 4096,
    ) -> ScramCredential:
        credential = made_of(mechanism, password.encode(), salt, iterations)
        self._table.apply(set_command(user, credential, SECRET))
        return credential

    def scram_credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._table.credential(user, mechanism)

    def scram_users(self) -> Mapping[str, Sequence[ScramCredential]]:
        return self._table.users

    def absent_users_secret(self) -> bytes:
        return self._table.absent_users_secret

    async def change_scram(self, changes: Sequence[ScramChange], *, first: bool = False) -> list[MainstemError | None]:
        if self.refuse is not None:
            raise self.refuse
        if first and self.absent_users_secret():
            return [CredentialRefused("the cluster has had its first user already")] * len(changes)
        outcomes: list[MainstemError | None] = []
        pending, commands = PendingChanges(), []
        for user, mechanism, kept in changes:
            command = RemoveScramCredential(user, mechanism) if kept is None else set_command(user, kept, SECRET)
            try:
                self._table.check(command, pending)
            except NameserverError as refusal:
                outcomes.append(refusal)
            else:
                pending.add(command)
                commands.append(command)
                outcomes.append(None)
        for command in commands:
            self._table.apply(command)
        return outcomes
