"""The steps with which a mechanism answers a token. Values that hold secrets do not show them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mainstem.model import ScramCredential, ScramMechanism


@dataclass(frozen=True, slots=True)
class Challenge:
    """The peer has to answer `token` next."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """The peer is `user`. `token` is the mechanism's last word, perhaps empty. `expires_ms`: when its credential does,
    in ms since the Unix epoch; None: it does not."""

    user: str
    token: bytes = b""
    expires_ms: int | None = None
    by_token: bool = False
    """Whether it showed a delegation token."""


@dataclass(frozen=True, slots=True)
class CredentialWanted:
    """The mechanism goes on (`Scram.found`) with the credential that is kept for the user, or without any. `by_token`:
    `user` is the id of a delegation token, with whose credential it goes on (`Scram.found_token`)."""

    user: str
    mechanism: ScramMechanism
    by_token: bool = False


class TokenLogin(NamedTuple):
    """The client that shows the secret behind `credential` is `user`, until `expires_ms`."""

    credential: ScramCredential
    user: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class PasswordGiven:
    """The peer is `user` if that is the user's password, which takes long to find out."""

    user: str
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class BearerTokenGiven:
    """The peer is whom the token names if it is valid: the mechanism goes on (`Bearer.valid`, `Bearer.invalid`).
    `user`: the one that the peer wants to be; empty: the one that the token names."""

    bearer_token: str = field(repr=False)
    user: str = ""


Step = Challenge | Accepted | CredentialWanted | PasswordGiven | BearerTokenGiven


class Mechanism(Protocol):
    """One conversation."""

    def step(self, token: bytes) -> Step:
        """Take the peer's next token. Raises `AuthenticationFailed`."""
        ...
