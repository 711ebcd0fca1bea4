"""Share groups in one run of whole nodes: who reads in them, and what must be true in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from typing import Any

import msgspec
from tests.simulation.oracle import Violation
from tests.simulation.share_groups.deliveries import Deliveries
from tests.simulation.share_groups.members import Place, ShareMember, ShareSeat
from tests.simulation.share_groups.watching import Watch
from tests.simulation.share_groups.windows import ShareLogs
from tests.simulation.transactions.atomicity import Atomicity
from tests.simulation.whole.client import Partition
from tests.simulation.whole.clients import Work
from tests.simulation.whole.cluster import WholeSettings
from tests.simulation.whole.connection import NoAnswer

from mainstem.broker.share_groups.config import READ_COMMITTED, ShareGroupsConfig
from mainstem.broker.share_groups.records import WindowKey

SHARE_GROUPS = "share groups"
"""Named among the faults of a run: it has share groups."""

SHARE_GROUPS_SECONDS = 8.0
"""Of load and faults, at least: locks run out in it, and members join again."""

GROUP_NAMES = ("packers", "tasters")

POLL_SECONDS = 0.2
PATIENCE = 400
"""How often is asked for what must be given out in the end: for longer than locks and sessions last."""


class ShareLoad:
    """Draws from `rng` move nothing else that a run's seed decides."""

    def __init__(self, work: Work, rng: random.Random, settings: WholeSettings) -> None:
        self._work = work
        self._rng = rng
        settings.shares = shares = drawn(rng)
        settings.groups_config = msgspec.structs.replace(
            settings.groups_config, share_session_timeout_ms=3_000, share_heartbeat_interval_ms=500
        )
        cluster = work.cluster
        self.logs = ShareLogs(
            cluster.history, cluster.ledger, shares.delivery_count_limit,
            committed=shares.isolation_level == READ_COMMITTED,
        )  # fmt: skip
        self.deliveries = Deliveries(self.logs, shares.delivery_count_limit, cluster.loop.time)
        cluster.opened = Watch(self.deliveries).opened
        self._groups = GROUP_NAMES[: rng.choice([1, 2])]
        self._from_start = shares.auto_offset_reset == "earliest"

    def read_committed(self, atomicity: Atomicity) -> None:
        """There are transactions."""
        self.logs.atomicity = atomicity

    def members(self) -> Iterator[Coroutine[Any, Any, None]]:
        for group in self._groups:
            for number in range(self._rng.randint(2, 4)):
                seat = ShareSeat(self._work, self.deliveries, group, number, random.Random(self._rng.random()))
                yield seat.run()

    # --- the end ------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Everything works, and nobody reads: a last member of each group gets all that is not done, and accepts it.
        No record is lost, neither given out ever again nor done."""
        for group in self._groups:
            name = f"{group}-last-{self._work.cluster.loop.time()}"
            member = ShareMember(self._work, self.deliveries, group, name, random.Random(self._rng.random()))
            for topic, index in self._work.partitions():
                if "compact" not in topic.settings.cleanup_policy:
                    await self._drain(member, Place(topic, Partition(topic.topic_id, index)))
            member.die()

    async def _drain(self, member: ShareMember, place: Place) -> None:
        key = WindowKey(member.group, *place.partition)
        for _ in range(PATIENCE):
            if key not in self.logs.windows and not self._from_start:
                return  # it would begin at the end
            if not self.logs.unfinished(key):
                return
            try:
                await member.fetch(place, [place])
                await member.accept_all()
            except NoAnswer:
                pass
            await asyncio.sleep(POLL_SECONDS)
        window, (first, *_) = self.logs.windows.get(key), self.logs.unfinished(key)
        standing = window.at(first) if window is not None else "of no window"
        raise Violation(
            f"share group {key.group_id}: record {first} of {place.topic.name}-{key.partition} is lost: it is "
            f"{standing}, and nobody gets it any more",
            "Q",
        )


def drawn(rng: random.Random) -> ShareGroupsConfig:
    """The settings of a run."""
    return ShareGroupsConfig(
        lock_duration_ms=rng.choice([300, 800, 2_000]),
        delivery_count_limit=rng.choice([2, 3, 5]),
        record_locks_max=rng.choice([20, 200]),
        auto_offset_reset=rng.choice(["earliest", "earliest", "latest"]),
        isolation_level=rng.choice(["read_uncommitted", READ_COMMITTED]),
        state_partitions_per_write_group=rng.choice([1, 2]),
        append_bytes_max=rng.choice([300, 1 << 17]),
        snapshot_after_bytes=rng.choice([500, 4_000, 1 << 20]),
        load_bytes=rng.choice([500, 1 << 20]),
    )
