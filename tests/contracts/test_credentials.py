"""`ports.Credentials`: the fake refuses, answers and remembers as a nameserver does that is alone in its cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.fakes.access.credentials import FakeCredentials
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.errors import MainstemError
from mainstem.model import Node, ScramChange, ScramCredential, ScramMechanism
from mainstem.nameserver.administration.access_administration import CREDENTIALS_TOGETHER_MAX
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import CredentialRefused, UnknownScramUser
from mainstem.nameserver.nameserver import Nameserver
from mainstem.ports import Credentials
from mainstem.storage.disks.disk_files import DiskFiles

SHA_256, SHA_512 = ScramMechanism
Tell = Callable[[Callable[[Credentials], Awaitable[None]]], None]


def credential(mechanism: ScramMechanism = SHA_256, iterations: int = 4096, seed: int = 1) -> ScramCredential:
    keys = random.Random(seed).randbytes(mechanism.key_bytes)
    return ScramCredential(mechanism, b"salt of the earth", iterations, keys, keys[::-1])


def setting(user: str, kept: ScramCredential) -> ScramChange:
    return ScramChange(user, kept.mechanism, kept)


async def opened(disk: DiskFiles) -> Nameserver:
    return await Nameserver.open(
        disk, random.Random(1), NameserverConfig(), Node(node_id=1, host="127.0.0.1", port=9092)
    )


@pytest.fixture(params=["fake", "nameserver"])
def tell(request: pytest.FixtureRequest, tmp_path: Path) -> Tell:
    async def told(story: Callable[[Credentials], Awaitable[None]]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            if request.param == "fake":
                await story(FakeCredentials())
                return
            disk = DiskFiles(tmp_path)
            nameserver = await opened(disk)
            try:
                await story(nameserver.credentials(random.Random(2).randbytes))
            finally:
                await nameserver.close()
                await disk.close()

    return lambda story: asyncio.run(told(story))


def kinds(outcomes: list[MainstemError | None]) -> list[type[MainstemError] | None]:
    return [None if it is None else type(it) for it in outcomes]


def test_what_is_kept_is_found_replaced_and_removed(tell: Tell) -> None:
    async def story(kept: Credentials) -> None:
        assert kept.scram_credential("an", SHA_256) is None
        assert dict(kept.scram_users()) == {}
        assert kept.absent_users_secret() == b""
        one, other, newer = credential(), credential(SHA_512), credential(seed=2)
        assert await kept.change_scram([setting("an", one), setting("an", other), setting("bo", one)]) == [None] * 3
        assert kept.scram_credential("an", SHA_256) == one
        assert kept.scram_credential("an", SHA_512) == other
        assert set(kept.scram_users()) == {"an", "bo"}
        secret = kept.absent_users_secret()
        assert len(secret) >= 32
        assert await kept.change_scram([setting("an", newer), ScramChange("an", SHA_512, None)]) == [None, None]
        assert list(kept.scram_users()["an"]) == [newer]
        await kept.change_scram([ScramChange("an", SHA_256, None), ScramChange("bo", SHA_256, None)])
        assert dict(kept.scram_users()) == {}
        assert kept.absent_users_secret() == secret

    tell(story)


def test_what_cannot_be_kept_is_refused_alone(tell: Tell) -> None:
    async def story(kept: Credentials) -> None:
        right = credential()
        short = ScramCredential(SHA_256, right.salt, 4096, right.stored_key[:-1], right.server_key)
        bare = ScramCredential(SHA_256, b"", 4096, right.stored_key, right.server_key)
        outcomes = await kept.change_scram(
            [
                setting("an", right),
                setting("bo", credential(iterations=4095)),
                setting("bo", credential(iterations=16_385)),
                setting("bo", short),
                setting("bo", bare),
                setting("", right),
                setting("x" * 257, right),
                ScramChange("bo", SHA_256, None),
            ]
        )
        assert kinds(outcomes) == [None, *[CredentialRefused] * 6, UnknownScramUser]
        assert list(kept.scram_users()) == ["an"]
        assert all(repr(right.stored_key)[2:-1] not in str(outcome) for outcome in outcomes)

    tell(story)


def test_a_first_user_is_made_once(tell: Tell) -> None:
    async def story(kept: Credentials) -> None:
        assert await kept.change_scram(
            [setting("an", credential()), setting("an", credential(SHA_512))], first=True
        ) == [
            None,
            None,
        ]
        again = [setting("an", credential(seed=2)), setting("bo", credential())]
        assert kinds(await kept.change_scram(again, first=True)) == [CredentialRefused] * 2
        assert dict(kept.scram_users()) == {"an": (credential(), credential(SHA_512))}
        await kept.change_scram([ScramChange("an", SHA_256, None), ScramChange("an", SHA_512, None)])
        assert kinds(await kept.change_scram(again, first=True)) == [CredentialRefused] * 2
        assert dict(kept.scram_users()) == {}

    tell(story)


def test_many_at_once(tell: Tell) -> None:
    async def story(kept: Credentials) -> None:
        many = [setting(f"user {number}", credential()) for number in range(CREDENTIALS_TOGETHER_MAX + 10)]
        assert await kept.change_scram(many) == [None] * len(many)
        assert len(kept.scram_users()) == len(many)

    tell(story)


def test_users_outlive_the_node(tmp_path: Path) -> None:
    async def story() -> None:
        disk = DiskFiles(tmp_path)
        nameserver = await opened(disk)
        kept = nameserver.credentials(random.Random(2).randbytes)
        await kept.change_scram([setting("an", credential())])
        secret = kept.absent_users_secret()
        await nameserver.close()
        nameserver = await opened(disk)
        kept = nameserver.credentials(random.Random(3).randbytes)
        assert dict(kept.scram_users()) == {"an": (credential(),)}
        assert kept.absent_users_secret() == secret
        await nameserver.close()
        await disk.close()

    asyncio.run(story())
