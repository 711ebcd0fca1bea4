"""Delegation tokens in the metadata, beside a model of them: whatever comes in whatever order, nothing is kept that
should not be, and snapshots lead to the same tokens."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.fakes.access.tokens import tokened
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.model import FeatureLevel, Node
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import FeatureLevelTooLow, InvalidToken, TooManyTokens, UnknownToken
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.changes import Ids, Made, make_commands
from mainstem.nameserver.state.commands import LoggedChange, decode_change, encode_change
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.state import MetadataState
from mainstem.rpc.messages.metadata import Wanted, WantToken, WantTokenExpiry, WantTokenRemovals
from mainstem.security.tokens.delegation_token import DelegationToken
from mainstem.storage.disks.disk_files import DiskFiles

OWNERS = ("User:an", "User:bo")
IDS = [f"token-{number}" for number in range(8)]
MOST, MOST_OF_OWNER = 5, 3
TOKEN = DelegationToken("t", "User:an", "User:bo", ("User:cy",), 10, 20, 30)


def made(state: MetadataState, wanted: Wanted) -> Made:
    return asyncio.run(make_commands(wanted, state, Ids(random.Random(1)), replicas=1))


def wanted(token: DelegationToken) -> WantToken:
    return WantToken(**{**token._asdict(), "renewers": list(token.renewers)})


class Tokens(RuleBasedStateMachine):
    """Time goes on, tokens are made, renewed, removed and swept away, and the node starts from snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("mainstem.nameserver.state.state.TOKENS_MAX", MOST)
        self.patch.setattr("mainstem.nameserver.state.state.TOKENS_OF_OWNER_MAX", MOST_OF_OWNER)
        self.now_ms = 0
        self.state = tokened()
        self.model: dict[str, DelegationToken] = {}

    def teardown(self) -> None:
        self.patch.undo()

    def change(self, wanted: Wanted) -> list[str]:
        """The kinds of the refusals, once all else went through the log."""
        commands, refusals, _ = made(self.state, wanted)
        if commands:
            for command in decode_change(encode_change(LoggedChange(commands))).commands:
                self.state.apply(command)
        return [refusal.kind for refusal in refusals]

    @initialize(now_ms=st.integers(0, 1000))
    def begin(self, now_ms: int) -> None:
        self.now_ms = now_ms

    @rule(by_ms=st.integers(1, 50))
    def time_passes(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @rule(token_id=st.sampled_from(IDS), owner=st.sampled_from(OWNERS), renews=st.integers(0, 40),
          lives=st.integers(0, 40))  # fmt: skip
    def add(self, token_id: str, owner: str, renews: int, lives: int) -> None:
        token = DelegationToken(
            token_id, owner, owner, ("User:cy",), self.now_ms, self.now_ms + renews, self.now_ms + lives
        )
        refused = self.change(wanted(token))
        owned = sum(it.owner == owner for it in self.model.values())
        if token_id in self.model or renews > lives:
            assert refused == [InvalidToken.__name__]
        elif len(self.model) >= MOST or owned >= MOST_OF_OWNER:
            assert refused == [TooManyTokens.__name__]
        else:
            assert refused == []
            self.model[token_id] = token

    @rule(token_id=st.sampled_from(IDS), in_ms=st.integers(-60, 60))
    def move(self, token_id: str, in_ms: int) -> None:
        expires_ms = max(0, self.now_ms + in_ms)
        refused = self.change(WantTokenExpiry(token_id, expires_ms))
        token = self.model.get(token_id)
        if token is None:
            assert refused == [UnknownToken.__name__]
        elif not token.issued_ms <= expires_ms <= token.ends_ms:
            assert refused == [InvalidToken.__name__]
        else:
            self.model[token_id] = token._replace(expires_ms=expires_ms)

    @rule(token_id=st.sampled_from(IDS))
    def remove(self, token_id: str) -> None:
        there = self.model.pop(token_id, None) is not None
        assert self.change(WantTokenRemovals([token_id])) == ([] if there else [UnknownToken.__name__])

    @rule()
    def sweep(self) -> None:
        self.change(WantTokenRemovals(IDS, self.now_ms))
        self.model = {key: it for key, it in self.model.items() if it.expires_ms >= self.now_ms}

    @rule()
    def start_from_a_snapshot(self) -> None:
        after = MetadataState(TopicDefaults())
        for command in self.state.commands():
            after.apply(command)
        self.state = after

    @invariant()
    def they_agree(self) -> None:
        assert {it.token_id: it for it in self.state.token_table} == self.model
        for owner in OWNERS:
            assert self.state.token_table.owned_by(owner) == sum(it.owner == owner for it in self.model.values())


TestTokens = Tokens.TestCase
TestTokens.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_the_logs_keep_no_tokens_below_their_level() -> None:
    state = tokened(FeatureLevel.SECURED)
    (refusal,) = made(state, wanted(TOKEN)).refusals
    assert refusal.kind == FeatureLevelTooLow.__name__
    assert made(tokened(), wanted(TOKEN)).refusals == []


@pytest.mark.parametrize(
    ("token", "fault"),
    [
        (TOKEN._replace(token_id=""), "id has 1 to"),
        (TOKEN._replace(owner="an"), "no principal"),
        (TOKEN._replace(owner="Group:an"), "no principal"),
        (TOKEN._replace(renewers=("User:",)), "no principal"),
        (TOKEN._replace(renewers=tuple(f"User:{number}" for number in range(33))), "33 renewers"),
        (TOKEN._replace(owner="User:" + "a" * 1024), "no principal"),
        (TOKEN._replace(ends_ms=19), "before it ends"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_leader(token: DelegationToken, fault: str) -> None:
    (refusal,) = made(tokened(), wanted(token)).refusals
    assert fault in refusal.message


def test_expired_tokens_are_removed_by_the_leader_and_others_outlive_a_start(tmp_path: Path) -> None:
    config = NameserverConfig(token_expiry_check_ms=10)
    node = Node(node_id=1, host="127.0.0.1", port=9092)

    async def opened() -> Nameserver:
        return await Nameserver.open(DiskFiles(tmp_path), random.Random(1), config, node)

    async def story() -> None:
        nameserver = await opened()
        stays = TOKEN._replace(token_id="stays", expires_ms=2**50, ends_ms=2**50)
        await nameserver.token_administration.add_token(TOKEN)
        await nameserver.token_administration.add_token(stays)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while nameserver.lookups.tokens().get(TOKEN.token_id) is not None:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)
        with pytest.raises(UnknownToken):
            await nameserver.token_administration.move_expiry(TOKEN.token_id, 25)
        await nameserver.close()
        nameserver = await opened()
        assert list(nameserver.lookups.tokens()) == [stays]
        await nameserver.close()

    asyncio.run(story())
