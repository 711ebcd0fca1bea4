"""One connection's authentication: what may come next, who the client is, and until when.

    stage       takes                      goes to
    HANDSHAKE   a handshake                TOKENS (version 0: RAW_TOKENS); FAILED if the mechanism is not offered
    TOKENS      tokens                     DONE when accepted, FAILED when refused
    RAW_TOKENS  the same, without a request around them
    DONE        a handshake, if sessions expire (KIP-368): the same mechanism and user again, TOKENS meanwhile
    FAILED      nothing

In TOKENS a client that was authenticated before stays who it is: it began to authenticate again, and nothing else is
taken until that is over. The caller sees to questions of the mechanism (`steps.Step`) and to time."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

from mainstem.security.sasl.bearer import Bearer
from mainstem.security.sasl.errors import AuthenticationFailed, IllegalState, MechanismNotEnabled
from mainstem.security.sasl.plain import Plain
from mainstem.security.sasl.scram import Scram
from mainstem.security.sasl.steps import Accepted, Step

REAUTHENTICATION_SECONDS_MIN = 1.0
"""As in Kafka: a client that authenticates again sooner is confused."""

Mechanisms = Mapping[str, Callable[[], Plain | Scram | Bearer]]
"""Makes a conversation of each mechanism that a listener offers, by its name."""


class Stage(enum.Enum):
    HANDSHAKE = enum.auto()
    TOKENS = enum.auto()
    RAW_TOKENS = enum.auto()
    DONE = enum.auto()
    FAILED = enum.auto()


class Authentication:
    """`session_seconds_max`: a client has to authenticate again before that time has passed (0: never)."""

    def __init__(self, mechanisms: Mechanisms, session_seconds_max: float = 0.0) -> None:
        self._mechanisms = mechanisms
        self._session_seconds_max = session_seconds_max
        self.stage = Stage.HANDSHAKE
        self.mechanism_name = ""
        self.mechanism: Plain | Scram | Bearer | None = None
        """The conversation, while there is one."""
        self.user: str | None = None
        """The principal of the client; None until it has shown that once."""
        self.by_token = False
        """Whether it did so by a delegation token."""
        self.expires_at: float | None = None
        """When the session does, by the clock that never goes back; None: it does not."""
        self._began_at = 0.0

    @property
    def offered(self) -> list[str]:
        return list(self._mechanisms)

    @property
    def authenticated(self) -> bool:
        """Whether requests other than those of the authentication are taken now, as long as the session lasts."""
        return self.stage is Stage.DONE

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def handshake(self, name: str, now: float, *, raw: bool = False) -> None:
        """The client wants to use a mechanism; `raw`: its tokens come without a request around them. Raises
        `IllegalState`, `MechanismNotEnabled`."""
        again = self.stage is Stage.DONE
        if again and (self.expires_at is None or now - self._began_at < REAUTHENTICATION_SECONDS_MIN):
            raise IllegalState("a handshake on a connection that is authenticated already")
        if not again and self.stage is not Stage.HANDSHAKE:
            self.fail()
            raise IllegalState("a second handshake")
        make = self._mechanisms.get(name)
        if make is None or (again and name != self.mechanism_name):
            self.fail()
            raise MechanismNotEnabled(f"the mechanism {name[:64]!r} is not offered")
        self.mechanism_name, self.mechanism = name, make()
        self._began_at = now
        self.stage = Stage.RAW_TOKENS if raw else Stage.TOKENS

    def step(self, token: bytes) -> Step:
        """The client's next token. Raises `AuthenticationFailed`, and `IllegalState` when no token is expected."""
        if self.stage not in (Stage.TOKENS, Stage.RAW_TOKENS):
            self.fail()
            raise IllegalState("a token without a handshake")
        assert self.mechanism is not None, "a handshake chooses one"
        try:
            return self.mechanism.step(token)
        except AuthenticationFailed:
            self.fail()
            raise

    def accept(self, accepted: Accepted, now: float, now_ms: int) -> int:
        """The client is who it says it is. Returns for how many ms, 0: for ever. Raises `AuthenticationFailed` if it
        was somebody else before, or its credential has expired meanwhile."""
        if self.user is not None and self.user != accepted.user:
            self.fail()
            raise AuthenticationFailed("a client cannot become another user while it is connected")
        lasts = [self._session_seconds_max] if self._session_seconds_max else []
        if accepted.expires_ms is not None:
            lasts.append((accepted.expires_ms - now_ms) / 1000)
        if lasts and min(lasts) <= 0:
            self.fail()
            raise AuthenticationFailed("the credential has expired")
        self.user, self.by_token = accepted.user, accepted.by_token
        self.mechanism = None
        self.stage = Stage.DONE
        self.expires_at = now + min(lasts) if lasts else None
        return int(min(lasts) * 1000) if lasts else 0

    def fail(self) -> None:
        """Nothing more is taken."""
        self.stage = Stage.FAILED
        self.mechanism = None
