"""The users whose SCRAM credentials the cluster keeps.

The table knows one more secret, made with the first credential and kept for ever: users that do not exist get their
salts from it (`security/sasl/credentials.py:absent`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mainstem.model import ScramCredential, ScramMechanism
from mainstem.nameserver.errors import CredentialRefused, TooManyUsers, UnknownScramUser
from mainstem.nameserver.state.commands import KeepAbsentUsersSecret, RemoveScramCredential, SetScramCredential
from mainstem.nameserver.state.topic_table import PendingChanges
from mainstem.security.sasl import credentials
from mainstem.security.sasl.errors import InvalidCredential

USERS_MAX = 100_000
"""Each takes some 600 bytes of memory and of a snapshot, with two credentials about twice that."""


class ScramTable:
    """Credentials by user and mechanism. `check` refuses before the log, `apply` changes."""

    def __init__(self) -> None:
        self._users: dict[str, tuple[ScramCredential, ...]] = {}
        self.absent_users_secret = b""
        """Empty until the first credential."""

    @property
    def users(self) -> Mapping[str, Sequence[ScramCredential]]:
        """Live: copy it before an await."""
        return self._users

    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return next((each for each in self._users.get(user, ()) if each.mechanism is mechanism), None)

    def check(self, command: SetScramCredential | RemoveScramCredential, pending: PendingChanges) -> None:
        """Raises `CredentialRefused`, `TooManyUsers`, `UnknownScramUser`."""
        if isinstance(command, RemoveScramCredential):
            if self.credential(command.user, command.mechanism) is None:
                raise UnknownScramUser(f"the user has no credential for {command.mechanism.value}")
            return
        try:
            credentials.check(command.user, command.credential)
        except InvalidCredential as error:
            raise CredentialRefused(str(error)) from None
        if command.user not in self._users and len(self._users) + len(pending.users) >= USERS_MAX:
            raise TooManyUsers(f"the cluster keeps credentials of {USERS_MAX} users, and takes no more")

    def apply(self, command: SetScramCredential | RemoveScramCredential | KeepAbsentUsersSecret) -> None:
        if isinstance(command, KeepAbsentUsersSecret):
            self.absent_users_secret = command.secret
            return
        others = tuple(each for each in self._users.get(command.user, ()) if each.mechanism is not command.mechanism)
        if isinstance(command, SetScramCredential):
            self._users[command.user] = (*others, command.credential)
            self.absent_users_secret = self.absent_users_secret or command.absent_users_secret
        elif others:
            self._users[command.user] = others
        else:
            self._users.pop(command.user, None)

    def commands(self) -> Iterator[SetScramCredential | KeepAbsentUsersSecret]:
        """The fewest that lead here; changes made while they are read do not show."""
        if not self.absent_users_secret:
            return iter(())
        return self._commands(dict(self._users), self.absent_users_secret)

    def _commands(
        self, users: Mapping[str, Sequence[ScramCredential]], secret: bytes
    ) -> Iterator[SetScramCredential | KeepAbsentUsersSecret]:
        yield KeepAbsentUsersSecret(secret)
        for user, kept in users.items():
            for each in kept:
                yield set_command(user, each)


def set_command(user: str, credential: ScramCredential, absent_users_secret: bytes = b"") -> SetScramCredential:
    return SetScramCredential(
        user,
        credential.mechanism,
        credential.salt,
        credential.iterations,
        credential.stored_key,
        credential.server_key,
        absent_users_secret,
    )
