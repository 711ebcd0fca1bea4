"""`AclAdmin`: the fake adds, removes and answers as a nameserver does that is alone in its cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.fakes.access.acls import MemoryAcls
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.model import Node
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.nameserver import Nameserver
from mainstem.security.acls.acl import Acl, Operation, PatternType, Permission, ResourceKind
from mainstem.security.acls.acl_admin import AclAdmin
from mainstem.security.acls.acl_table import AclTable
from mainstem.storage.disks.disk_files import DiskFiles

RULE = Acl(ResourceKind.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
OTHER = RULE._replace(name="ord", pattern=PatternType.PREFIXED, permission=Permission.DENY)
MANY = [RULE._replace(name=f"orders-{number}") for number in range(600)]


class Subject(NamedTuple):
    admin: AclAdmin
    table: Callable[[], AclTable]


Tell = Callable[[Callable[[Subject], Awaitable[None]]], None]


@pytest.fixture(params=["fake", "nameserver"])
def tell(request: pytest.FixtureRequest, tmp_path: Path) -> Tell:
    async def told(story: Callable[[Subject], Awaitable[None]]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            if request.param == "fake":
                fake = MemoryAcls()
                await story(Subject(fake, lambda: fake.table))
                return
            node = Node(node_id=1, host="127.0.0.1", port=9092)
            nameserver = await Nameserver.open(DiskFiles(tmp_path), random.Random(1), NameserverConfig(), node)
            try:
                await story(Subject(nameserver.acl_administration, nameserver.lookups.acls))
            finally:
                await nameserver.close()

    return lambda story: asyncio.run(told(story))


def test_rules_are_there_when_a_change_returns(tell: Tell) -> None:
    async def story(subject: Subject) -> None:
        before = subject.table().version
        assert await subject.admin.add_acls([RULE, OTHER, RULE]) == [None, None, None]
        assert list(subject.table()) == [RULE, OTHER]
        assert subject.table().version is not before
        await subject.admin.current()
        assert await subject.admin.remove_acls([RULE, RULE]) == [None, None]
        assert list(subject.table()) == [OTHER]

    tell(story)


def test_what_changes_nothing_is_no_error(tell: Tell) -> None:
    async def story(subject: Subject) -> None:
        assert await subject.admin.add_acls([]) == []
        assert await subject.admin.remove_acls([RULE]) == [None]
        assert not len(subject.table())

    tell(story)


def test_many_rules_at_once(tell: Tell) -> None:
    async def story(subject: Subject) -> None:
        assert await subject.admin.add_acls(MANY) == [None] * len(MANY)
        assert list(subject.table()) == MANY
        assert await subject.admin.remove_acls(MANY) == [None] * len(MANY)
        assert not len(subject.table())

    tell(story)
