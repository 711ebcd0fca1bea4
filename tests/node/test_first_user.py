"""The first user of a cluster is made once, whatever becomes of it later."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import uuid
from pathlib import Path

import pytest
from tests.fakes.access.credentials import FakeCredentials
from tests.fakes.clock import FakeClock
from tests.fakes.files import SimulatedFiles

from mainstem.errors import ConfigError
from mainstem.model import ScramChange, ScramMechanism
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.node.access.authentication import PASSWORD_VARIABLE, make_first_user
from mainstem.node.node_ports import NodePorts
from mainstem.rpc.handlers import Handlers
from mainstem.security.sasl.config import SaslConfig
from mainstem.security.sasl.credentials import fits


def ports(seed: int = 1) -> NodePorts:
    files = SimulatedFiles(1)
    return NodePorts(
        clock=FakeClock(),
        randomness=lambda: random.Random(1),
        new_id=lambda: str(uuid.uuid4()),
        random_bytes=random.Random(seed).randbytes,
        write_files=files,
        store_files=files,
        write_dir=Path(),
        store_dir=Path(),
        handlers=Handlers(),
        connect=None,
    )


def make(kept: FakeCredentials, config: SaslConfig, seed: int = 1) -> None:
    async def current() -> None:
        pass

    asyncio.run(make_first_user(config, kept, ports(seed), current))


@pytest.fixture
def config(tmp_path: Path) -> SaslConfig:
    path = tmp_path / "password"
    path.write_text("apple\n")
    path.chmod(0o600)
    return SaslConfig(bootstrap_user="admin", bootstrap_password_file=str(path))


def test_it_can_authenticate_by_each_mechanism(config: SaslConfig) -> None:
    kept = FakeCredentials()
    make(kept, config)
    salts = set()
    for mechanism in ScramMechanism:
        credential = kept.scram_credential("admin", mechanism)
        assert credential is not None
        assert fits(credential, b"apple")
        salts.add(credential.salt)
    assert len(salts) == 2


def test_it_is_not_made_again(config: SaslConfig) -> None:
    kept = FakeCredentials()
    make(kept, config)
    asyncio.run(kept.change_scram([ScramChange("admin", mechanism, None) for mechanism in ScramMechanism]))
    make(kept, config)
    assert dict(kept.scram_users()) == {}
    other = FakeCredentials()
    other.add("somebody", "pear")
    make(other, config)
    assert list(other.scram_users()) == ["somebody"]


def test_of_nodes_that_start_together_one_makes_it(config: SaslConfig) -> None:
    kept = FakeCredentials()
    there = asyncio.Barrier(2)

    async def current() -> None:
        await there.wait()

    async def story() -> None:
        await asyncio.gather(*(make_first_user(config, kept, ports(seed), current) for seed in (1, 2)))

    asyncio.run(story())
    alone = [FakeCredentials(), FakeCredentials()]
    for seed, each in enumerate(alone, 1):
        make(each, config, seed)
    made = list(kept.scram_users()["admin"])
    assert made in [list(each.scram_users()["admin"]) for each in alone], "one node's, for both mechanisms"


def test_the_password_may_stand_in_a_variable_which_nobody_inherits(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setenv(PASSWORD_VARIABLE, "pear")
    kept = FakeCredentials()
    make(kept, SaslConfig(bootstrap_user="admin"))
    credential = kept.scram_credential("admin", ScramMechanism.SHA_512)
    assert credential is not None
    assert fits(credential, b"pear")
    assert PASSWORD_VARIABLE not in os.environ


def test_without_a_password_the_node_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="needs a password"):
        make(FakeCredentials(), SaslConfig(bootstrap_user="admin"))
    path = tmp_path / "password"
    path.write_text("apple")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        make(FakeCredentials(), SaslConfig(bootstrap_user="admin", bootstrap_password_file=str(path)))
    path.write_text("\napple")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="first line"):
        make(FakeCredentials(), SaslConfig(bootstrap_user="admin", bootstrap_password_file=str(path)))


def test_a_cluster_that_takes_no_changes_now_starts_all_the_same(
    config: SaslConfig, caplog: pytest.LogCaptureFixture
) -> None:
    kept = FakeCredentials()
    kept.refuse = MetadataUnavailable("no leader")
    with caplog.at_level(logging.ERROR, "mainstem"):
        make(kept, config)
    assert "the first user was not made" in caplog.text
    assert "apple" not in caplog.text
