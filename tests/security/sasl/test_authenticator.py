"""A whole authentication, as a node does it: who is let in, who waits, and what nobody can find out."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from scramp import ScramClient
from tests.fakes.access.credentials import FakeCredentials
from tests.fakes.clock import FakeClock

from mainstem.errors import ConfigError
from mainstem.model import ScramChange, ScramMechanism
from mainstem.security.sasl import authenticator as authenticators
from mainstem.security.sasl.authenticator import Authenticator
from mainstem.security.sasl.conversation import Authentication, Stage
from mainstem.security.sasl.errors import AuthenticationFailed, IllegalState, MechanismNotEnabled
from mainstem.security.sasl.guesses import ADDRESSES_MAX, DELAY_SECONDS_MAX, FREE_FAILURES, Guesses
from mainstem.security.sasl.key_source import KeySource
from mainstem.security.sasl.plain import Plain
from mainstem.security.sasl.plain_users import is_password, read_users
from mainstem.security.sasl.steps import Accepted, Challenge, PasswordGiven
from mainstem.side_thread import AtOnce

T = TypeVar("T")
SHA_256 = ScramMechanism.SHA_256.value
ALL = ("PLAIN", SHA_256, ScramMechanism.SHA_512.value)


class House:
    """A node's authenticator on a clock of its own; `hashes` counts the passwords that were hashed."""

    def __init__(self, session_seconds_max: float = 0.0, plain_users: dict[str, bytes] | None = None) -> None:
        self.clock = FakeClock()
        self.works = asyncio.Event()
        """Cleared: what is to be hashed waits."""
        self.works.set()
        self.kept = FakeCredentials()
        self.kept.add("an", "apple")
        self.hashes = 0
        self.authenticator = Authenticator(
            self.kept,
            self.clock,
            self,
            random.Random(1).randbytes,
            plain_users=plain_users,
            session_seconds_max=session_seconds_max,
            keys=KeySource(lambda: document(KEY), AtOnce(), self.clock),
            sleep=self._sleep,
            rests_per_hash=0.0,
        )

    async def run(self, work: Callable[[], T]) -> T:
        self.hashes += 1
        await self.works.wait()
        self.clock.advance(0.005)
        return await AtOnce().run(work)

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def bearer(self, token: str) -> tuple[Challenge | Accepted, int]:
        authentication = self.authenticator.begin(("OAUTHBEARER",))
        authentication.handshake("OAUTHBEARER", self.clock.monotonic())
        return await self.authenticator.step(authentication, "10.0.0.2", f"n,,\x01auth=Bearer {token}\x01\x01".encode())

    async def plain(
        self, user: str, password: str, host: str = "10.0.0.1", authentication: Authentication | None = None
    ) -> tuple[Challenge | Accepted, int]:
        authentication = authentication or self.authenticator.begin(ALL)
        authentication.handshake("PLAIN", self.clock.monotonic())
        return await self.authenticator.step(authentication, host, f"\0{user}\0{password}".encode())

    async def refused_after(self, user: str, password: str, host: str = "10.0.0.1") -> float:
        began_at = self.clock.monotonic()
        with pytest.raises(AuthenticationFailed):
            await self.plain(user, password, host)
        return self.clock.monotonic() - began_at


KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})


def document(key: RSAKey) -> bytes:
    return json.dumps(KeySet([key]).as_dict(private=False)).encode()


def play(story: Awaitable[None]) -> None:
    async def played() -> None:
        await story

    asyncio.run(played())


def test_plain_goes_by_the_users_of_the_cluster() -> None:
    async def story() -> None:
        house = House()
        assert await house.plain("an", "apple") == (Accepted("an"), 0)
        assert await house.plain("an", "apple") == (Accepted("an"), 0)
        assert house.hashes == 1  # the second time the password is known
        await house.refused_after("an", "pear")
        await house.refused_after("an", "Apple")
        house.kept.add("an", "banana", salt=b"another salt")
        await house.refused_after("an", "apple")
        assert await house.plain("an", "banana") == (Accepted("an"), 0)
        await house.kept.change_scram([ScramChange("an", ScramMechanism.SHA_256, None)])
        await house.refused_after("an", "banana")

    play(story())


def test_a_name_that_nobody_has_is_refused_like_a_wrong_password() -> None:
    async def story() -> None:
        house = House()
        wrong = await house.refused_after("an", "pear")
        hashed = house.hashes
        unknown = await house.refused_after("nobody", "pear")
        assert wrong == pytest.approx(unknown)
        assert wrong == pytest.approx(0.1)
        assert house.hashes - hashed == hashed  # the same work, too

    play(story())


def test_an_address_that_guesses_waits_and_others_do_not() -> None:
    async def story() -> None:
        house = House()
        took = [await house.refused_after("an", f"guess {number}", "10.0.0.66") for number in range(20)]
        assert took[:FREE_FAILURES] == pytest.approx([0.1] * FREE_FAILURES)
        assert max(took) == pytest.approx(DELAY_SECONDS_MAX + 0.1, rel=0.2)
        began_at = house.clock.monotonic()
        await house.plain("an", "apple", "10.0.0.1")
        assert house.clock.monotonic() - began_at < 0.1
        began_at = house.clock.monotonic()
        await house.plain("an", "apple", "10.0.0.66")  # even with the right password
        assert house.clock.monotonic() - began_at > 1
        house.clock.advance(3600)
        assert await house.refused_after("an", "pear", "10.0.0.66") == pytest.approx(0.1)

    play(story())


def test_addresses_that_are_remembered_are_bounded() -> None:
    guesses = Guesses(0.1)
    for number in range(ADDRESSES_MAX + 10):
        guesses.failed(str(number), 0.0)
    assert len(guesses) == ADDRESSES_MAX


def test_scram_and_sessions_that_end() -> None:
    async def story() -> None:
        house = House(session_seconds_max=60)
        authentication = house.authenticator.begin(ALL)

        async def scram(mechanism: str, user: str, password: str) -> int:
            client = ScramClient([mechanism], user, password)
            authentication.handshake(mechanism, house.clock.monotonic())
            challenge, _ = await house.authenticator.step(authentication, "h", client.get_client_first().encode())
            client.set_server_first(challenge.token.decode())
            final = str(client.get_client_final()).encode()
            accepted, lasts_ms = await house.authenticator.step(authentication, "h", final)
            client.set_server_final(accepted.token.decode())
            return lasts_ms

        assert await scram(SHA_256, "an", "apple") == 60_000
        assert authentication.authenticated
        with pytest.raises(IllegalState):  # too soon
            await scram(SHA_256, "an", "apple")
        house.clock.advance(50)
        assert not authentication.expired(house.clock.monotonic())
        assert await scram(SHA_256, "an", "apple") == 60_000
        house.clock.advance(50)
        assert not authentication.expired(house.clock.monotonic())
        house.clock.advance(10)
        assert authentication.expired(house.clock.monotonic())
        house.kept.add("other", "apple")
        with pytest.raises(AuthenticationFailed, match="another user"):
            await scram(SHA_256, "other", "apple")
        assert authentication.stage is Stage.FAILED
        assert authentication.user == "an"

    play(story())


def test_a_client_keeps_its_mechanism() -> None:
    async def story() -> None:
        house = House(session_seconds_max=60)
        authentication = house.authenticator.begin(ALL)
        await house.plain("an", "apple", authentication=authentication)
        house.clock.advance(2)
        with pytest.raises(MechanismNotEnabled):
            authentication.handshake(SHA_256, house.clock.monotonic())

    play(story())


def test_what_comes_out_of_order_fails_for_good() -> None:
    async def story() -> None:
        house = House()
        early = house.authenticator.begin(ALL)
        with pytest.raises(IllegalState):
            await house.authenticator.step(early, "h", b"\0an\0apple")
        with pytest.raises(IllegalState):
            early.handshake("PLAIN", 0.0)
        twice = house.authenticator.begin(ALL)
        twice.handshake("PLAIN", 0.0)
        with pytest.raises(IllegalState):
            twice.handshake("PLAIN", 0.0)
        with pytest.raises(IllegalState):
            await house.authenticator.step(twice, "h", b"\0an\0apple")
        narrow = house.authenticator.begin((SHA_256,))
        with pytest.raises(MechanismNotEnabled):
            narrow.handshake("PLAIN", 0.0)
        done = house.authenticator.begin(ALL)
        await house.plain("an", "apple", authentication=done)
        with pytest.raises(IllegalState):  # sessions that do not expire are not begun again…
            done.handshake("PLAIN", 100.0)
        assert done.authenticated  # …and go on, as in Kafka

    play(story())


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"an\0apple",
        b"\0an\0",
        b"\0\0apple",
        b"root\0an\0apple",
        b"\0an\0apple\0",
        b"\0\xff\0x",
        b"\0a\0" + b"x" * 2000,
    ],
)
def test_plain_messages_that_are_refused(token: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        Plain().step(token)


def test_a_plain_client_may_name_itself_twice() -> None:
    assert Plain().step(b"an\0an\0apple") == PasswordGiven("an", b"apple")


def test_a_file_of_users(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("# users\n\nan:apple:pie\nbo:b\n")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_users(path)
    path.chmod(0o600)
    users = read_users(path)
    assert is_password(users, "an", b"apple:pie")
    assert not is_password(users, "an", b"b")
    assert not is_password(users, "nobody", b"")

    async def story() -> None:
        house = House(plain_users=users)
        assert await house.plain("bo", "b") == (Accepted("bo"), 0)
        await house.refused_after("an", "apple")  # the file counts, not the cluster

    play(story())
    for wrong in ("an", "an:", ":x", "an:a\nan:b"):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match="line"):
            read_users(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_users(tmp_path / "missing")


def test_secrets_do_not_show_in_texts() -> None:
    house = House()
    credential = house.kept.add("bo", "a secret")
    shown = (
        repr(credential)
        + str(PasswordGiven("bo", b"a secret"))
        + repr(ScramChange("bo", credential.mechanism, credential))
    )
    assert "a secret" not in shown
    assert repr(credential.stored_key) not in shown
    assert repr(credential.server_key) not in shown
    assert repr(credential.salt) not in shown


def test_passwords_and_tokens_that_wait_to_be_checked_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of either takes one thread for half of its time, and no memory beyond the bound."""
    monkeypatch.setattr(authenticators, "CHECKS_WAITING_MAX", 2)

    async def story() -> None:
        house = House()
        expires = house.clock.now_ms() // 1000 + 60
        token = jwt.encode({"alg": "RS256", "kid": "one"}, {"sub": "an", "exp": expires}, KEY)
        house.works.clear()
        first = [asyncio.create_task(house.plain("an", "apple")), asyncio.create_task(house.bearer(token))]
        while house.hashes < 2:  # noqa: ASYNC110  # they wait for nothing else
            await asyncio.sleep(0)
        await house.refused_after("an", "apple")
        answer, _ = await house.bearer(token)
        assert isinstance(answer, Challenge), "it says that the token is not taken"
        assert house.hashes == 2
        house.works.set()
        accepted = [answer for answer, _ in (*await asyncio.gather(*first), await house.bearer(token))]
        assert [isinstance(answer, Accepted) and answer.user for answer in accepted] == ["an"] * 3
        assert house.hashes == 3

    play(story())
