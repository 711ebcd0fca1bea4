"""The end of a run of groups that change their protocol: nothing fails any more, and groups come to rest.

Members of both protocols join together and get every partition between them. Then those of one protocol leave: the
group is of the other one, whose members get every partition. In the end a last member, of either protocol, has all.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence

from tests.simulation.migrating_groups.members import Fenced, MigratingMember
from tests.simulation.migrating_groups.ownership import Ownership
from tests.simulation.oracle import Violation
from tests.simulation.whole.admin import ELSEWHERE
from tests.simulation.whole.client import Partition
from tests.simulation.whole.clients import Work
from tests.simulation.whole.connection import NoAnswer
from tests.simulation.whole.members import Rejoin

from mainstem.protocol.messages.group_administration import ListGroupsRequest

POLL_SECONDS = 0.2
PATIENCE = 400
"""The most looks at what must be there in the end: they go on for longer than sessions and rebalances last."""

ALL_AT_ONCE = 3
"""Looks in a row at which the members of a group have everything: nobody is about to give something up."""

NewMember = Callable[[str], MigratingMember]
"""Makes one of a protocol."""


class Stay:
    """One member that stays in its group until it is told to leave."""

    def __init__(self, member: MigratingMember, ownership: Ownership) -> None:
        self.member = member
        self._ownership = ownership
        self._leaves = False
        self._task = asyncio.get_running_loop().create_task(self._run())
        self.at_rest = False
        """Its last request was answered, and it has nothing to do."""

    async def _run(self) -> None:
        member = self.member
        while not self._leaves:
            try:
                await member.step()
                self.at_rest = True
            except Fenced:
                self.at_rest = False
                member.fenced()
            except (NoAnswer, Rejoin):
                self.at_rest = False
                member.unsure()
            await asyncio.sleep(POLL_SECONDS / 4)
        self._ownership.over(member.membership)
        with contextlib.suppress(Fenced, NoAnswer, Rejoin):  # then its session ends
            await member.leave()

    def check(self) -> None:
        """Raises what went wrong."""
        if self._task.done():
            self._task.result()

    async def leave(self) -> None:
        self._leaves = True
        await self._task

    def stop(self) -> None:
        self._task.cancel()


class Settlement:
    """Of one group."""

    def __init__(self, work: Work, ownership: Ownership, group: str, new_member: NewMember, rng: random.Random) -> None:
        self._work = work
        self._ownership = ownership
        self._group = group
        self._new_member = new_member
        self._rng = rng
        self._client = work.client()

    async def run(self, protocols: Sequence[str]) -> None:
        """Raises `Violation`. One of the `protocols`, a draw, is the group's in the end."""
        rng = self._rng
        last = rng.choice(protocols)
        drawn = [*protocols, *(rng.choice(protocols) for _ in range(rng.randint(0, 2)))]
        rng.shuffle(drawn)
        stays = [Stay(self._new_member(protocol), self._ownership) for protocol in drawn]
        try:
            await self._rest(stays, "members of both protocols")
            leaving = [stay for stay in stays if stay.member.protocol != last]
            stays = [stay for stay in stays if stay.member.protocol == last]
            await asyncio.gather(*(stay.leave() for stay in leaving))
            await self._rest(stays, f"its {last} members alone")
            await self._end_in(last)
            for stay in stays[1:]:
                await stay.leave()
            await self._rest(stays[:1], f"a last {last} member")
            await stays[0].leave()
        finally:
            for stay in stays:
                stay.stop()

    async def _rest(self, stays: Sequence[Stay], who: str) -> None:
        """These members have every partition between them, and go on having it."""
        wanted = {Partition(topic.topic_id, index) for topic, index in self._work.partitions()}
        looks, missing = 0, wanted
        for _ in range(PATIENCE):
            for stay in stays:
                stay.check()
            missing = wanted.difference(*(stay.member.membership.owned for stay in stays))
            looks = looks + 1 if not missing and all(stay.at_rest for stay in stays) else 0
            if looks == ALL_AT_ONCE:
                return
            await asyncio.sleep(POLL_SECONDS)
        what = ", ".join(f"{place.index} of {place.topic_id}" for place in sorted(missing)) or "none, and do not rest"
        raise Violation(
            f"group {self._group} is not assigned in full when nothing fails any more: {who} do not get partition "
            f"{what} within {PATIENCE * POLL_SECONDS:.0f} s",
            "H",
        )

    async def _end_in(self, protocol: str) -> None:
        """The coordinator says that the group is of this protocol."""
        kind = "unknown"
        for _ in range(PATIENCE):
            try:
                kind = await self._kind()
            except NoAnswer:
                self._client.doubt_coordinator(self._group)
            if kind == protocol:
                return
            await asyncio.sleep(POLL_SECONDS)
        raise Violation(f"group {self._group} does not end in one protocol: it is {kind}, all are {protocol}", "H")

    async def _kind(self) -> str:
        """Raises `NoAnswer`."""
        node_id = await self._client.coordinator(self._group)
        answer = await self._client.ask(node_id, ListGroupsRequest(), 5)
        if answer.error_code in ELSEWHERE:
            raise NoAnswer
        return next((row.group_type.lower() for row in answer.groups if row.group_id == self._group), "gone")
