"""Answers what the mechanisms ask, and takes a client's tokens to an end: who it is, or that it failed.

An attempt that fails is answered a fixed time after its token came, so that how long a check took shows nothing: a
name that nobody has takes as long as a wrong password. Addresses that fail again and again wait before anybody looks
at what they send. Hashing and signatures run beside the event loop, in one thread that takes breaks: guesses cannot
take more than a part of one processor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from mainstem.model import SCRAM_MECHANISMS, ScramCredential, ScramMechanism
from mainstem.ports import Clock, Credentials, SideWork
from mainstem.security.sasl import bearer, credentials, plain
from mainstem.security.sasl.bearer import Bearer
from mainstem.security.sasl.conversation import Authentication, Mechanisms
from mainstem.security.sasl.errors import AuthenticationFailed, KeysUnavailable
from mainstem.security.sasl.guesses import Guesses
from mainstem.security.sasl.key_source import KeySource
from mainstem.security.sasl.plain import Plain
from mainstem.security.sasl.plain_users import is_password
from mainstem.security.sasl.scram import NONCE_BYTES, Scram
from mainstem.security.sasl.steps import (
    Accepted,
    BearerTokenGiven,
    Challenge,
    CredentialWanted,
    PasswordGiven,
    TokenLogin,
)
from mainstem.security.sasl.token_check import Expected, TokenIdentity, UnknownKey, check_token
from mainstem.security.sasl.verified_passwords import VerifiedPasswords

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

RESTS_PER_HASH = 1.0
"""The thread sleeps as long as each hash, or look at a bearer token, took: guesses take half of one processor at the
most. Clients whose password was right lately cost no hash."""

CHECKS_WAITING_MAX = 1_000
"""Passwords that wait to be hashed: at 5 ms each, with the rests, as long as clients wait for an answer; and bearer
tokens. More fail at once."""

R = TypeVar("R")

TokenLookup = Callable[[str, ScramMechanism], Awaitable[TokenLogin | None]]
"""Looks up a delegation token by its id; None: there is none, or it has expired."""


class Authenticator:
    """`random_bytes`: unpredictable bytes, as many as asked for. `plain_users`: the passwords that PLAIN goes by; None:
    the cluster's credentials. `tokens`: the delegation tokens that SCRAM takes; None: it takes none."""

    def __init__(
        self,
        kept: Credentials,
        clock: Clock,
        side_work: SideWork,
        random_bytes: Callable[[int], bytes],
        *,
        plain_users: Mapping[str, bytes] | None = None,
        tokens: TokenLookup | None = None,
        keys: KeySource | None = None,
        expected: Expected | None = None,
        failed_delay_seconds: float = 0.1,
        session_seconds_max: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rests_per_hash: float = RESTS_PER_HASH,
    ) -> None:
        self._kept = kept
        self._clock = clock
        self._side_work = side_work
        self._random_bytes = random_bytes
        self._plain_users = plain_users
        self._tokens = tokens
        self._keys = keys
        self._expected = expected or Expected()
        self._failed_delay_seconds = failed_delay_seconds
        self._session_seconds_max = session_seconds_max
        self._sleep = sleep
        self._rests_per_hash = rests_per_hash
        self._guesses = Guesses(failed_delay_seconds)
        self._verified = VerifiedPasswords(random_bytes(32))
        self._own_secret = random_bytes(32)
        """Stands for the cluster's as long as that has none: there are no users then."""
        self._checks_waiting = 0
        self._made: dict[str, Callable[[], Plain | Scram | Bearer]] = {plain.NAME: Plain, bearer.NAME: Bearer}
        for name, mechanism in SCRAM_MECHANISMS.items():
            self._made[name] = partial(self._scram, mechanism)
        self.accepted = 0
        self.failed = 0

    def begin(self, mechanisms: Sequence[str]) -> Authentication:
        """A new connection's authentication, by any of these mechanisms."""
        offered: Mechanisms = {name: self._made[name] for name in mechanisms}
        return Authentication(offered, self._session_seconds_max)

    def must_wait(self, host: str) -> bool:
        """Whether an attempt of this address waits before anybody looks at it."""
        return self._guesses.delay_seconds(host, self._clock.monotonic()) > 0

    async def wait(self, host: str) -> None:
        """As long as an attempt of this address has to."""
        if seconds := self._guesses.delay_seconds(host, self._clock.monotonic()):
            await self._sleep(seconds)

    async def step(
        self, authentication: Authentication, host: str, token: bytes, *, waits: bool = True
    ) -> tuple[Challenge | Accepted, int]:
        """Take a token of a client at `host`. Returns what it is answered, and for how many ms it is authenticated then
        (0: for ever, or not yet). `waits`: as long as its address has to; False: the caller did. Raises
        `AuthenticationFailed` and `IllegalState`, once the client may know."""
        now = self._clock.monotonic
        if waits:
            await self.wait(host)
        came_at = now()
        try:
            answer = await self._answer(authentication, token)
            lasts_ms = 0
            if isinstance(answer, Accepted):
                lasts_ms = authentication.accept(answer, now(), self._clock.now_ms())
                self.accepted += 1
            return answer, lasts_ms
        except AuthenticationFailed:
            authentication.fail()
            self.failed += 1
            self._guesses.failed(host, now())
            await self._sleep(max(0.0, came_at + self._failed_delay_seconds - now()))
            raise

    async def _answer(self, authentication: Authentication, token: bytes) -> Challenge | Accepted:
        step = authentication.step(token)
        mechanism = authentication.mechanism
        match step:
            case CredentialWanted(user=token_id, mechanism=wanted, by_token=True):
                assert isinstance(mechanism, Scram)
                login = None if self._tokens is None else await self._tokens(token_id, wanted)
                if login is None:
                    return mechanism.found(self._absent(token_id, wanted), exists=False)
                return mechanism.found_token(*login)
            case CredentialWanted(user=user, mechanism=wanted):
                assert isinstance(mechanism, Scram)
                credential = self._kept.scram_credential(user, wanted)
                exists = credential is not None
                return mechanism.found(credential or self._absent(user, wanted), exists=exists)
            case PasswordGiven(user=user, password=password):
                if not await self._is_password(user, password):
                    raise AuthenticationFailed("the credentials are wrong")
                return Accepted(user)
            case BearerTokenGiven(bearer_token=bearer_token):
                assert isinstance(mechanism, Bearer)
                try:
                    owner = await self._owner(bearer_token)
                except (AuthenticationFailed, KeysUnavailable) as error:
                    return mechanism.invalid(str(error))
                return mechanism.valid(owner.user, owner.expires_ms)
        return step

    # PLAIN

    async def _is_password(self, user: str, password: bytes) -> bool:
        if self._plain_users is not None:
            return is_password(self._plain_users, user, password)
        found = (self._kept.scram_credential(user, mechanism) for mechanism in ScramMechanism)
        credential = next((each for each in found if each is not None), None)
        if credential is not None and self._verified.knows(user, credential, password):
            return True
        against = credential or self._absent(user, ScramMechanism.SHA_256)
        right = await self._beside(partial(credentials.fits, against, password))
        if not right or credential is None:
            return False
        self._verified.add(user, credential, password)
        return True

    async def _beside(self, check: Callable[[], R]) -> R:
        """Have the thread check what a client shows."""
        if self._checks_waiting >= CHECKS_WAITING_MAX:
            raise AuthenticationFailed("too many passwords or tokens wait to be checked")
        self._checks_waiting += 1
        try:
            return await self._side_work.run(partial(self._check_and_rest, check))
        finally:
            self._checks_waiting -= 1

    def _check_and_rest(self, check: Callable[[], R]) -> R:
        """Runs in the thread."""
        began_at = time.perf_counter()
        try:
            return check()
        finally:
            time.sleep(self._rests_per_hash * (time.perf_counter() - began_at))

    # SCRAM

    def _scram(self, mechanism: ScramMechanism) -> Scram:
        return Scram(mechanism, self._random_bytes(NONCE_BYTES))

    def _absent(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        return credentials.absent(mechanism, user, self._kept.absent_users_secret() or self._own_secret)

    # OAUTHBEARER

    async def _owner(self, token: str) -> TokenIdentity:
        if self._keys is None:
            raise KeysUnavailable("no place of the issuer's keys is configured")
        keys = await self._keys.keys()
        try:
            return await self._checked(token, keys)
        except UnknownKey:
            newer = await self._keys.keys(missed=True)
            if newer is keys:
                raise
            return await self._checked(token, newer)

    async def _checked(self, token: str, keys: KeySet) -> TokenIdentity:
        now_seconds = self._clock.now_ms() / 1000
        return await self._beside(partial(check_token, token, keys, self._expected, now_seconds))
