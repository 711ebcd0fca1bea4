"""Groups that change their protocol in one run of whole nodes: their members, and what must be true in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

import msgspec
from tests.simulation.migrating_groups.members import (
    REBALANCE_TIMEOUT_MS,
    SESSION_MS,
    ClassicMember,
    ConsumerMember,
    Fenced,
    MigratingMember,
    Seat,
)
from tests.simulation.migrating_groups.ownership import CLASSIC, CONSUMER, Ownership
from tests.simulation.migrating_groups.watching import Watch
from tests.simulation.oracle import Violation
from tests.simulation.whole.admin import Asker
from tests.simulation.whole.client import Partition
from tests.simulation.whole.clients import Work
from tests.simulation.whole.cluster import WholeSettings
from tests.simulation.whole.connection import NoAnswer
from tests.simulation.whole.members import Rejoin

MIGRATING_GROUPS = "migrating groups"
"""Named among the faults of a run: it has groups whose members change their protocol."""

MIGRATING_GROUPS_SECONDS = 12.0
"""Of load and faults, at least: sessions run out in it, and groups change their protocol to and fro."""

GROUP_NAMES = ("movers", "shakers")

POLL_SECONDS = 0.2
PATIENCE = 400
"""The most looks at what must be there in the end: they go on for longer than sessions and rebalances last."""


class MigratingLoad:
    """Draws from `rng` move nothing else that a run's seed decides."""

    def __init__(self, work: Work, rng: random.Random, settings: WholeSettings) -> None:
        self._work = work
        self._rng = rng
        settings.groups_config = msgspec.structs.replace(
            settings.groups_config, consumer_session_timeout_ms=SESSION_MS, consumer_heartbeat_interval_ms=300
        )
        self.ownership = Ownership(settings.groups_config.offsets_topic_partitions, work.cluster.loop.time)
        work.cluster.opened = Watch(self.ownership).opened
        self._groups = GROUP_NAMES[: rng.choice([1, 2])]
        self._cooperative = {group: rng.random() < 0.7 for group in GROUP_NAMES}

    def members(self) -> Iterator[Coroutine[Any, Any, None]]:
        for group in self._groups:
            for _ in range(self._rng.randint(2, 3)):
                rng = random.Random(self._rng.random())
                yield Seat(self._work, partial(self._member, group, rng), rng).run()
        yield Asker(self._work, list(self._groups)).run()

    def _member(self, group: str, rng: random.Random) -> MigratingMember:
        if rng.choice([CLASSIC, CONSUMER]) == CONSUMER:
            return ConsumerMember(self._work, self.ownership, group, rng)
        return ClassicMember(self._work, self.ownership, group, rng, cooperative=self._cooperative[group])

    # --- the end ------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Everything works, and nobody is left of the members: groups tell their offsets, and a last member, of either
        protocol, gets all partitions."""
        asker = Asker(self._work, list(self._groups))
        for group in self._groups:
            for _ in range(PATIENCE):
                if await asker.ask(group, everything=True):
                    break
                await asyncio.sleep(POLL_SECONDS)
            else:
                raise Violation(f"group {group} does not tell its offsets", "S")
            await self._take_all(self._member(group, self._rng))

    async def _take_all(self, member: MigratingMember) -> None:
        wanted = {Partition(topic.topic_id, index) for topic, index in self._work.partitions()}
        for _ in range(PATIENCE):
            try:
                await member.step()
                if wanted <= member.membership.owned.keys():
                    await member.leave()
                    self.ownership.over(member.membership)
                    return
            except Fenced:
                member.fenced()
            except (NoAnswer, Rejoin):
                member.unsure()
            await asyncio.sleep(POLL_SECONDS)
        missing = sorted(wanted - member.membership.owned.keys())
        raise Violation(
            f"group {member.group}: nobody gets partition {missing[0].index} of {missing[0].topic_id} any more, after "
            f"{PATIENCE * POLL_SECONDS + REBALANCE_TIMEOUT_MS / 1000:.0f} s",
            "H",
        )
