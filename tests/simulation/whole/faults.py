"""The faults of whole nodes: all that does for storage roles, and what their clients see of the network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from tests.fakes.files import PowerLoss
from tests.simulation.cluster.faults import ROTTEN_MANIFEST, Faults, Kind
from tests.simulation.cluster.node import NodeDisk
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.connection import ClientQuality
from tests.simulation.whole.node import WholeNode

from mainstem.errors import MainstemError
from mainstem.storage.journal.encoding.format import segment_name, sequence_of

PRODUCERS = ".producers"

KINDS_OF_FILES = (
    ".wal", ".idx", ".free", ".checkpoint", "hard_states", "starts", "metadata/vote", ".log", ".snapshot",
    "store.mark", ".run", ".pack", "queues/", "manifest/", PRODUCERS,
)  # fmt: skip


class WholeFaults(Faults):
    _cluster: WholeCluster

    def __init__(self, cluster: WholeCluster, rng: random.Random, only: Sequence[str] = ()) -> None:
        self._clients = cluster.clients_network
        self._copying = False
        self.copies = 0
        """How often one was brought back."""
        self.rotten: dict[str, int] = {}
        """How many files of each kind had a bit flipped."""
        self._forgets: WholeNode | None = None
        """The node whose files of producers rot."""
        self.mended_pages = 0
        """Pages of producers' files that were damaged so, and are known again."""
        self._powerless = False
        """One has lost its power, and has not got back what it lost."""
        self.powers = 0
        """How often one has."""
        super().__init__(cluster, rng, only)

    def kinds(self) -> list[Kind]:
        return [
            *(kind for kind in super().kinds() if kind[0] != ROTTEN_MANIFEST),  # whole nodes keep theirs elsewhere
            ("clients cut off", self._cut_clients_off),
            ("connections break", self._break_connections),
            ("old copy", self._old_copy),
            ("power", self._power),
            ("rotten file", self._rot_any),
            ("rotten producers", self._rot_producers),
        ]

    async def heal(self) -> None:
        await super().heal()
        for node in self._cluster.nodes.values():  # else no majority may agree, and true timestamps be of the future
            node.clock.step(-node.clock.ahead_ms)
        self._clients.quality = ClientQuality()
        self._clients.cut.clear()

    async def _cut_clients_off(self) -> None:
        """Clients do not reach a node, which other nodes do reach."""
        node_id = self._node().node_id
        self._clients.cut.add(node_id)
        await asyncio.sleep(self._some_time())
        self._clients.cut.discard(node_id)

    async def _old_copy(self) -> None:
        """A node is started on a copy of its directories from before its last start, while of the two others one has
        missed what it acknowledged since, and the other one is down."""
        nodes = list(self._cluster.nodes.values())
        if len(nodes) != 3 or not self._one_may_forget():
            return
        self._copying = True
        try:
            await self._bring_back_a_copy(*self._rng.sample(nodes, 3))
        finally:
            self._copying = False

    async def _bring_back_a_copy(self, forgetful: WholeNode, late: WholeNode, holder: WholeNode) -> None:
        forgetful.lose_power(keep_all=True)
        forgetful.boot()
        copy = forgetful.copy()
        await self._restarted(forgetful, at_once=True)
        if not await self._soon(lambda: self._all_know_more(forgetful, [late, holder]), 3.0):
            return  # somebody was away: nobody could tell that a copy is one
        for _ in range(self._rng.choice([0, 3])):  # votes that the copy does not know
            await self._transfer()
            await asyncio.sleep(0.5)
        if late.up and late.serving is not None:
            late.lose_power()
        await asyncio.sleep(1.0 + self._some_time())
        for node in (forgetful, holder):
            if node.up and node.serving is not None:
                node.lose_power()
        loop = asyncio.get_running_loop()
        if not (forgetful.up or late.up or holder.up):  # no other fault has begun to start one again
            forgetful.boot()
            path = self._rng.choice(["", "", "hard_states", "metadata/vote"])
            if path:  # what is older is one file, of the votes
                forgetful.disk1.put(path, copy.disk1.content(path))
            else:
                forgetful.restore(copy)
            self.copies += 1
            starting = [loop.create_task(self._restarted(late, at_once=True))]
            starting.append(loop.create_task(self._start_again(forgetful)))
            await asyncio.sleep(2.0 + self._some_time())
        else:
            starting = [loop.create_task(self._restarted(node, at_once=True)) for node in (late, forgetful)]
        await self._restarted(holder, at_once=True)
        await asyncio.gather(*starting)

    async def _rot_producers(self) -> None:
        """Producers' files of one and the same node: what nobody has met yet another one may have to tell. A checkpoint
        first: with it there are such files."""
        self._forgets = self._forgets or self._rng.choice(list(self._cluster.nodes.values()))
        node = self._forgets
        if node.up and node.serving is not None and not node.damaged:
            try:
                await node.call(node.serving.checkpointer.save(), patience=10)
            except (MainstemError, OSError, PowerLoss):
                return
            await self._rot(node, (PRODUCERS,))

    async def _rot_any(self) -> None:
        await self._rot(self._rng.choice(list(self._cluster.nodes.values())), KINDS_OF_FILES)

    async def _rot(self, node: WholeNode, kinds: Sequence[str]) -> None:
        """A bit of some file is another when a node starts: it refuses to, or does without, or gets what it lacks from
        the others. Then, if it is still the same file, the bit is put right. In what was written last to the journal it
        could not be told from a torn write."""
        rng = self._rng
        if not node.up or node.serving is None or node.damaged:
            return
        newest = segment_name(sequence_of(node.serving.journal.end))[:-4]
        self.mended_pages += node.serving.producers.damaged.mended
        node.lose_power(keep_all=True)
        node.boot()
        disk, path = self._some_file(node, newest, kinds)
        written = len(disk.content(path).rstrip(b"\0")) if path else 0
        if written:
            at = rng.randrange(written)
            bit = 8 * at + rng.randrange(8)
            node.damaged.append(path)
            disk.troubles += 1
            disk.flip(path, bit)
            flipped = disk.content(path)[:written]
            kind = next((part for part in KINDS_OF_FILES if part in path), path)
            self.rotten[kind] = self.rotten.get(kind, 0) + 1
            self._cluster.history.note("rotten", node.node_id, path, bit)
            await node.restart()
            await asyncio.sleep(self._some_time())
            if node.serving is not None and kinds == (PRODUCERS,):  # no other node lacks any: it stays as it is
                node.damaged.remove(path)
                return
            node.lose_power(keep_all=True)
            if not node.up:
                node.boot()
                if path in disk.paths() and disk.content(path)[:written] == flipped:
                    disk.flip(path, bit)
            node.damaged.remove(path)
        await self._restarted(node)

    def _some_file(self, node: WholeNode, newest: str, wanted: Sequence[str]) -> tuple[NodeDisk, str]:
        """Any of these kinds of files as likely as any other; an empty path where there is none."""
        files = [
            (disk, path)
            for disk in (node.disk1, node.disk2)
            for path in disk.paths()
            if disk.content(path) and not (path.startswith("journal/0") and path[8:28] >= newest)
        ]
        kinds = [[file for file in files if part in file[1]] for part in wanted]
        there = [of_kind for of_kind in kinds if of_kind]
        return self._rng.choice(self._rng.choice(there)) if there else (node.disk1, "")

    async def _power(self) -> None:
        """Under `async` durability: one machine goes down with what was acknowledged and not synced; the next one only
        when this one has got that back."""
        node = self._rng.choice(list(self._cluster.nodes.values()))
        if not self._cluster.settings.is_async or not self._one_may_forget():
            return
        self._powerless = True
        self.powers += 1
        node.lose_power(keep_all=False, even_async=True)
        node.applied.clear()
        await self._restarted(node)
        if await self._soon(lambda: node.roles is not None and not node.roles.starts.why, 30.0):
            self._powerless = False

    def _one_may_forget(self) -> bool:
        """No node has forgotten anything that it has not got back, nor is about to, and each was shown the newest start
        of every other: where two of three have forgotten, nobody knows better, and it takes an operator to go on."""
        nodes = self._cluster.nodes.values()
        return not self._copying and not self._powerless and super()._one_may_forget() and all(
            node.serving and node.roles is not None and not node.roles.starts.why
            and all(other is node or other.has_seen(node) == node.drawn[-1] for other in nodes)
            for node in nodes
        )  # fmt: skip

    def _all_know_more(self, node: WholeNode, others: Sequence[WholeNode]) -> bool:
        return node.roles is not None and all(other.has_seen(node) == node.drawn[-1] for other in others)

    async def _start_again(self, node: WholeNode) -> None:
        if not await node.start():
            await self._restarted(node)

    async def _break_connections(self) -> None:
        self._clients.quality = ClientQuality(
            delay_seconds=self._rng.choice([0.001, 0.05, 0.5]), breaks=self._rng.choice([0.02, 0.1, 0.3])
        )
        await asyncio.sleep(2 * self._some_time())
        self._clients.quality = ClientQuality()
