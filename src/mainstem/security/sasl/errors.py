"""Errors of an authentication. Reasons go to the log, never to the peer, and hold no secrets."""

from __future__ import annotations

from mainstem.errors import MainstemError


class SaslError(MainstemError):
    """Base of every error of this room."""


class AuthenticationFailed(SaslError):
    """The peer is not who it says it is, or its message makes no sense. The peer is told no more than that."""


class IllegalState(SaslError):
    """The request does not fit the state of the authentication."""


class MechanismNotEnabled(SaslError):
    """The peer asked for a mechanism that its listener does not offer."""


class InvalidCredential(SaslError):
    """A credential that must not be kept: the message says what is wrong with it."""


class KeysUnavailable(SaslError):
    """The keys that tokens are checked with could not be read; the message names the place and the fault."""
