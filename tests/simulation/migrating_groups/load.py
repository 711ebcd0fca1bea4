"""Groups that change their protocol in one run of whole nodes: their members, and what must be true in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

import msgspec
from tests.simulation.migrating_groups.classic_member import ClassicMember
from tests.simulation.migrating_groups.consumer_member import ConsumerMember
from tests.simulation.migrating_groups.members import SESSIONS_MS, MigratingMember, Seat
from tests.simulation.migrating_groups.ownership import CLASSIC, CONSUMER, Ownership
from tests.simulation.migrating_groups.settling import PATIENCE, POLL_SECONDS, Settlement
from tests.simulation.migrating_groups.watching import Watch
from tests.simulation.oracle import Violation
from tests.simulation.whole.admin import Asker
from tests.simulation.whole.clients import Work
from tests.simulation.whole.cluster import WholeSettings

MIGRATING_GROUPS = "migrating groups"
"""Named among the faults of a run: it has groups whose members change their protocol."""

MIGRATING_GROUPS_SECONDS = 12.0
"""Of load and faults, at least: sessions run out in it, and groups change their protocol to and fro."""

GROUP_NAMES = ("movers", "shakers")


class MigratingLoad:
    """Draws from `rng` move nothing else that a run's seed decides."""

    def __init__(self, work: Work, rng: random.Random, settings: WholeSettings) -> None:
        self._work = work
        self._rng = rng
        settings.groups_config = msgspec.structs.replace(
            settings.groups_config,
            consumer_session_timeout_ms=SESSIONS_MS[CONSUMER],
            consumer_heartbeat_interval_ms=300,
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
        return self._member_of(group, rng, rng.choice([CLASSIC, CONSUMER]))

    def _member_of(self, group: str, rng: random.Random, protocol: str) -> MigratingMember:
        if protocol == CONSUMER:
            return ConsumerMember(self._work, self.ownership, group, rng)
        return ClassicMember(self._work, self.ownership, group, rng, cooperative=self._cooperative[group])

    # --- the end ------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Everything works, and nobody is left of the members: groups tell their offsets, and come to rest."""
        asker = Asker(self._work, list(self._groups))
        for group in self._groups:
            for _ in range(PATIENCE):
                if await asker.ask(group, everything=True):
                    break
                await asyncio.sleep(POLL_SECONDS)
            else:
                raise Violation(f"group {group} does not tell its offsets", "S")
            rng = random.Random(self._rng.random())
            settlement = Settlement(self._work, self.ownership, group, partial(self._member_of, group, rng), rng)
            await settlement.run([CLASSIC, CONSUMER])
