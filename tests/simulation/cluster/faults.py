"""The faults, and how long it takes until it is put right. Each run draws the kinds of faults it has."""

from __future__ import annotations

import asyncio
import errno
import random
import re
import tempfile
from collections.abc import Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any

from tests.simulation.cluster.cluster import SimulatedCluster
from tests.simulation.cluster.network import Quality
from tests.simulation.cluster.node import NodeDisk, SimulatedNode
from tests.simulation.oracle import require

from mainstem.raft import MembershipRefused, NotReady
from mainstem.storage.errors import NotTheLeader, StorageError
from mainstem.storage.journal.encoding.blocks import blocks_in
from mainstem.storage.journal.encoding.format import FIRST_BLOCK, offset_of, position_of, segment_name, sequence_of
from mainstem.storage.queue_store.manifest.database.manifest_database import Contents, Database
from mainstem.storage.queue_store.manifest.manifest_rows import COPY_DIRECTORY
from mainstem.storage.queue_store.manifest.store_mark import MARK, MARK_NAME, SLOT_DISTANCE, StoreMark
from mainstem.storage.role import Storage
from mainstem.storage.verifying.rebuilding import examine, marked, put

HEALING_SECONDS = 60.0
"""Simulated; no fault lasts so long."""

SHORT_LIVES_MAX = 8
"""Of a node that is left behind, one after the other, some seconds each: it has to be healed in time."""
SHORT_LIVES_SECONDS = 25.0
"""After so many no other one of these begins: a start alone takes ten seconds where disks are slow and much is to be
read, and healing waits for `HEALING_SECONDS`."""

VOTER_SECONDS_MAX = 3.0
"""How long is waited for a node that starts while it hears one other node only: a whole one may need both."""

ZOMBIE_SECONDS_MAX = 5.0
"""A leader that stands still is replaced within two seconds, and its clients have found the other one within five."""
ZOMBIE_LOOK_SECONDS = 0.05

YEAR_MS = 366 * 86_400_000
CLOCK_STEPS_MS = (-3_600_000, -5000, -1, 1000, 60_000, 3_600_000, YEAR_MS)

ROTTEN_MANIFEST = "rotten manifest"
"""The fault's name."""
SQLITE_PAGE_BYTES = 4096
LOST_SHARE = 0.4
"""How often the manifest is gone as a whole."""

MERGE_CRASH = "crash in a merge"
"""The fault's name."""
MERGE_SECONDS_MAX = 2.0
"""How long a node is watched for a merge."""

REMEDY = re.compile(r"restore|have another node take the place", re.IGNORECASE)
"""The remedy that every refusal of a manifest names."""

Kind = tuple[str, Callable[[], Coroutine[Any, Any, None]]]


class Faults:
    """`run` until cancelled, then `heal`."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random, only: Sequence[str] = ()) -> None:
        """`only` these kinds of faults, if any is named."""
        self._cluster = cluster
        self._rng = rng
        self._network = cluster.network
        self._tasks: set[asyncio.Task[None]] = set()
        self.happened: dict[str, int] = {}
        self.manifests_refused: list[str] = []
        """Why nodes did not start on a damaged manifest."""
        self.manifests_unharmed = 0
        """How often a node started on one, and it said what it had said before."""
        self.manifests_made = 0
        """How often one that was gone was made anew from its copy."""
        self.copies_rotten = 0
        """How many copies had a bit flipped when the manifest was gone…"""
        self.copies_refused = 0
        """…and so many of them served no more: the repair named what was damaged."""
        kinds = self.kinds()
        count = rng.randint(1, len(kinds))
        self._kinds = [kind for kind in kinds if kind[0] in only] or rng.sample(kinds, count)
        self._pause_seconds = rng.choice([0.1, 0.5, 1.5])

    def leave_out(self, names: Collection[str]) -> None:
        """These kinds of faults do not happen; if the run drew no others, nodes crash."""
        crash = [kind for kind in self.kinds() if kind[0] == "crash"]
        self._kinds = [kind for kind in self._kinds if kind[0] not in names] or crash

    def kinds(self) -> list[Kind]:
        """All there are."""
        return [
            ("cut off", self._cut_off),
            ("one way", self._cut_one_way),
            ("bridge", self._bridge),
            ("weather", self._weather),
            ("slow link", self._slow_link),
            ("crash", self._crash),
            ("crash later", self._crash_in_the_middle),
            (MERGE_CRASH, self._crash_in_a_merge),
            ("all crash", self._crash_all),
            ("left behind", self._leave_behind),
            ("restart", self._restart),
            ("rolling restart", self._rolling_restart),
            ("pause", self._pause),
            ("zombie", self._stand_still_while_others_lead),
            ("clock", self._step_clock),
            ("transfer", self._transfer),
            ("bad disk", self._bad_disk),
            ("slow disk", self._slow_disk),
            ("full disk", self._full_disk),
            ("metadata", self._hide_metadata),
            ("bit flip", self._flip_bit),
            (ROTTEN_MANIFEST, self._rot_manifest),
            ("two candidates", self._two_candidates),
            ("no majority", self._mute),
        ]

    async def run(self) -> None:
        rng = self._rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / self._pause_seconds))
            name, fault = rng.choice(self._kinds)
            self.happened[name] = self.happened.get(name, 0) + 1
            self._cluster.history.note(name, round(self._cluster.loop.time(), 6))
            self._begin(fault(), name)

    def bring_up(self, node: SimulatedNode) -> asyncio.Task[None]:
        """Have a node start that is off; healing waits for that."""
        return self._begin(self._restarted(node, at_once=True), f"node {node.node_id} starts")

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._cluster.report(error)  # type: ignore[arg-type]

    async def heal(self) -> None:
        """Everything works from now on, and every node is up."""
        while self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=HEALING_SECONDS)
            require(not pending, f"not healed after {HEALING_SECONDS:g} s: {pending}")
        self._network.quality = Quality()
        self._network.cut.clear()
        self._network.mute.clear()
        self._network.slow.clear()
        for node in self._cluster.nodes.values():
            node.metadata_hidden = False
            node.disk1.repair()
            node.disk2.repair()
        for node in self._cluster.nodes.values():
            if node.failure is not None:
                node.lose_power(keep_all=True)
            require(not node.up or node.serving is not None, f"node {node.node_id} is neither up nor down")
        await asyncio.gather(*(node.restart() for node in self._cluster.nodes.values() if not node.up))

    def _node(self) -> SimulatedNode:
        return self._rng.choice(list(self._cluster.nodes.values()))

    def _some_time(self) -> float:
        return self._rng.choice([0.05, 0.3, 1.0, 2.5])

    # --- network ------------------------------------------------------------------------------------------

    async def _mute(self) -> None:
        """One write group decides nothing, the others do."""
        group = self._rng.randrange(self._cluster.settings.groups)
        self._network.mute.add(group)
        await asyncio.sleep(self._rng.choice([0.3, 2.5, 8.0]))
        self._network.mute.discard(group)

    async def _cut(self, ways: set[tuple[int, int]]) -> None:
        ways = ways - self._network.cut
        self._network.cut |= ways
        await asyncio.sleep(self._some_time())
        self._network.cut -= ways

    async def _cut_off(self) -> None:
        """One node, or a few, and the others: nothing gets through."""
        ids = list(self._cluster.nodes)
        apart = set(self._rng.sample(ids, self._rng.randint(1, len(ids) // 2)))
        if self._rng.random() < 0.5 and (leaders := self._cluster.leaders(0)):
            apart = {leaders[0].node_id}
        rest = set(ids) - apart
        await self._cut({(a, b) for a in apart for b in rest} | {(b, a) for a in apart for b in rest})

    async def _cut_one_way(self) -> None:
        """A node is heard by nobody, or hears nobody, or one link does not work in one direction."""
        node = self._node().node_id
        others = [other for other in self._cluster.nodes if other != node]
        if self._rng.random() < 0.5:
            others = [self._rng.choice(others)]
        out = self._rng.random() < 0.5
        await self._cut({(node, other) if out else (other, node) for other in others})

    async def _bridge(self) -> None:
        """Two nodes do not reach each other, all others reach both."""
        a, b = self._rng.sample(list(self._cluster.nodes), 2)
        await self._cut({(a, b), (b, a)})

    async def _weather(self) -> None:
        rng = self._rng
        self._network.quality = Quality(
            loss=rng.choice([0.0, 0.05, 0.3]),
            repeats=rng.choice([0.0, 0.1, 0.5]),
            late=rng.choice([0.0, 0.1, 0.4]),
            late_seconds=rng.choice([0.05, 0.5, 3.0]),
            delay_seconds=rng.choice([0.0, 0.005, 0.05]),
            tells=rng.choice([0.0, 0.9]),
        )
        await asyncio.sleep(2 * self._some_time())
        self._network.quality = Quality()

    async def _slow_link(self) -> None:
        way = tuple(self._rng.sample(list(self._cluster.nodes), 2))
        self._network.slow[way] = self._rng.choice([0.02, 0.2, 0.6])  # type: ignore[index]
        await asyncio.sleep(self._some_time())
        self._network.slow.pop(way, None)  # type: ignore[arg-type]

    # --- nodes --------------------------------------------------------------------------------------------

    async def _crash(self) -> None:
        node = self._node()
        if node.up and node.serving is not None:
            node.lose_power()
            await self._restarted(node)

    async def _crash_in_the_middle(self) -> None:
        """The power goes during one of the next changes on one of its disks."""
        node = self._node()
        if node.up and node.serving is not None:
            life = node.life
            disk = self._rng.choice([node.disk1, node.disk1, node.disk2])
            disk.cut_power(after=self._rng.randint(1, 30))
            await asyncio.sleep(self._some_time())
            if node.life is life:
                node.lose_power()
                await self._restarted(node)

    async def _crash_in_a_merge(self) -> None:
        """The power goes while a merge is being recorded, or just then."""
        node = self._node()
        if not node.up or node.serving is None:
            return
        life = node.life
        if await self._soon(lambda: node.life is not life or node.is_handing_in, MERGE_SECONDS_MAX):
            await asyncio.sleep(self._rng.choice([0.0, 0.0005, 0.002, 0.01]))
            if node.life is life and node.up and node.serving is not None:
                node.lose_power()
                await self._restarted(node)

    async def _crash_all(self) -> None:
        nodes = [node for node in self._cluster.nodes.values() if node.up and node.serving is not None]
        for node in nodes:
            node.lose_power()
        await asyncio.gather(*map(self._restarted, nodes))

    async def _leave_behind(self) -> None:
        """A node is down until the others have pruned what it lacks, and may die again while it takes a snapshot."""
        node, rng = self._node(), self._rng
        others = [other for other in self._cluster.nodes.values() if other is not node and other.serving is not None]
        if not node.up or node.serving is None or len(others) <= len(self._cluster.nodes) // 2:
            return
        node.lose_power()
        for _ in range(100):
            await asyncio.sleep(0.1)
            if self.is_left_behind(node):
                break
        lives, over = 0, self._cluster.loop.time() + SHORT_LIVES_SECONDS
        while not node.up and lives < SHORT_LIVES_MAX and self._cluster.loop.time() < over and rng.random() < 0.7:
            lives += 1
            if await node.restart():
                life = node.life
                rng.choice([node.disk1, node.disk1, node.disk2]).cut_power(after=rng.randint(1, 60))
                await asyncio.sleep(rng.choice([0.5, 2.0, 4.0]))
                if node.life is life:
                    node.lose_power()
        if not node.up:
            await self._restarted(node)

    def is_left_behind(self, node: SimulatedNode) -> bool:
        """Of some group all others have pruned what this one lacks."""
        nodes = self._cluster.nodes.values()
        others = [other.serving for other in nodes if other is not node and other.serving is not None]
        return any(
            all(
                mine.group < len(other.groups) and other.groups[mine.group].blocks.first_index() > mine.last_index + 1
                for other in others
            )
            for mine in node.storage.groups
        )

    async def _restarted(self, node: SimulatedNode, *, at_once: bool = False) -> None:
        """A killed node comes back, sometime; if it does not start, somebody will look after its disks."""
        if not at_once:
            await asyncio.sleep(self._some_time())
        while not node.up and not await node.restart():
            node.disk1.repair()
            node.disk2.repair()
            await asyncio.sleep(0.2)

    async def _restart(self) -> None:
        node = self._node()
        if node.up and node.serving is not None and not node.life_stopped:
            await node.stop()
            await self._restarted(node)

    async def _rolling_restart(self) -> None:
        for node in list(self._cluster.nodes.values()):
            if node.up and node.serving is not None and not node.life_stopped:
                await node.stop()
                await self._restarted(node)
                await asyncio.sleep(self._some_time())

    async def _pause(self) -> None:
        """A process stands still, and goes on: a leader, as often as not."""
        leaders = self._cluster.leaders(self._rng.randrange(self._cluster.settings.groups))
        node = leaders[0] if leaders and self._rng.random() < 0.5 else self._node()
        life = node.life
        if node.up and node.serving is not None and life is not None and not life.stopped:
            self._cluster.loop.stop_life(life)
            await asyncio.sleep(self._some_time())
            if life.alive:
                given_up = self._rng.random() < 0.5  # as others do with connections on which nobody answers
                self._cluster.loop.continue_life(life, self._network.arrive if given_up else None)

    async def _stand_still_while_others_lead(self) -> None:
        """A leader stands still until others have acknowledged something in its place. When it goes on, what they sent
        it meanwhile is lost, so that it hears of them only when it asks."""
        cluster, group = self._cluster, self._rng.randrange(self._cluster.settings.groups)
        leaders = cluster.leaders(group)
        life = leaders[0].life if leaders else None
        if life is None or life.stopped:
            return
        cluster.loop.stop_life(life)
        before = cluster.history.promised_ends(group)
        for _ in range(round(ZOMBIE_SECONDS_MAX / ZOMBIE_LOOK_SECONDS)):
            await asyncio.sleep(ZOMBIE_LOOK_SECONDS)
            if cluster.history.promised_ends(group) > before:
                break
        await asyncio.sleep(self._rng.choice([0.0, 0.1]))
        if life.alive:
            cluster.loop.continue_life(life, self._network.arrive)

    async def _two_candidates(self) -> None:
        """Two nodes that do not reach each other ask a third one for its vote in the same term; between the two
        requests it crashes, and hears nothing of whom it has voted for."""
        cluster, network = self._cluster, self._network
        if len(cluster.nodes) != 3:
            return
        first, second, voter = (cluster.nodes[node_id] for node_id in self._rng.sample(list(cluster.nodes), 3))
        group = self._rng.randrange(cluster.settings.groups)
        a, b, c = first.node_id, second.node_id, voter.node_id
        network.cut |= {(x, y) for x in (a, b, c) for y in (a, b, c) if x != y}
        await asyncio.sleep(1.3)  # nobody leads any more
        network.cut -= {(a, c), (c, a), (b, c), (c, b)}
        network.slow[c, b] = 0.25
        for node in (first, second):
            if node.serving is not None:
                await node.call(self._campaign(node.serving, group), patience=0.1)
        if await self._soon(lambda: voter.voted_for(group) == a, 0.2):
            network.slow[a, c] = 1.0  # not what it has to say as a leader
        await self._soon(lambda: first.won(group), 0.2)
        network.cut |= {(a, c), (c, a)}
        restarting: set[asyncio.Task[None]] = set()
        if voter.up and voter.serving is not None:
            voter.lose_power()
            await asyncio.sleep(0.02)
            restarting = {asyncio.get_running_loop().create_task(self._restarted(voter, at_once=True))}
            await asyncio.wait(restarting, timeout=VOTER_SECONDS_MAX)
        await self._soon(lambda: second.won(group), 0.4)
        network.slow.pop((c, b), None)
        network.slow.pop((a, c), None)
        network.cut -= {(a, b), (b, a), (a, c), (c, a)}
        await asyncio.gather(*restarting)

    async def _soon(self, holds: Callable[[], bool], patience: float) -> bool:
        """Whether something comes to hold within so many seconds."""
        for _ in range(int(patience / 0.001)):
            if holds():
                return True
            await asyncio.sleep(0.001)
        return False

    async def _campaign(self, storage: Storage, group: int) -> None:
        if (core := storage.groups[group].consensus.core) is not None:
            core.campaign()
            storage.groups[group].consensus.pump()

    async def _step_clock(self) -> None:
        clocks, voting = [node.clock for node in self._cluster.nodes.values()], self._cluster.settings.nodes
        step_ms = self._rng.choice(CLOCK_STEPS_MS)
        if step_ms >= YEAR_MS and sum(clock.ahead_ms_max >= YEAR_MS for clock in clocks) >= (voting - 1) // 2:
            return  # a majority is never that far off
        self._node().clock.step(step_ms)

    async def _transfer(self) -> None:
        group = self._rng.randrange(self._cluster.settings.groups)
        for node in self._cluster.leaders(group):
            to = self._rng.choice([other for other in self._cluster.nodes if other != node.node_id])
            storage = node.storage

            async def transfer(storage: Storage = storage, to: int = to) -> None:
                try:
                    storage.groups[group].transfer_leadership(to, storage.setup.clock.now_ms())
                except (NotTheLeader, MembershipRefused, NotReady):
                    pass

            await node.call(transfer(), patience=1)

    async def _hide_metadata(self) -> None:
        node = self._node()
        node.metadata_hidden = True
        await asyncio.sleep(self._some_time())
        node.metadata_hidden = False

    # --- disks --------------------------------------------------------------------------------------------

    async def _bad_disk(self) -> None:
        """A write, a sync or a read fails; a node that writes no more is killed and started again."""
        node = self._node()
        if not node.up or node.serving is None:
            return
        disk, rng = self._rng.choice([node.disk1, node.disk1, node.disk2]), self._rng
        operation = rng.choice(["write", "sync", "read", "open", "rename", "remove", "size"])
        disk.fail(operation, nth=rng.randint(1, 20), error=rng.choice([errno.EIO, errno.EIO, errno.ENOSPC]))
        await asyncio.sleep(self._some_time())
        await self.restart_failed(node)

    async def restart_failed(self, node: SimulatedNode) -> None:
        """Somebody sees that the node does not do its work any more."""
        if node.failure is not None and not node.life_stopped:
            node.lose_power()
            await self._restarted(node)

    async def _slow_disk(self) -> None:
        disk = self._node().disk1
        disk.slow_seconds = self._rng.choice([0.005, 0.05, 0.3])
        await asyncio.sleep(self._some_time())
        disk.slow_seconds = 0.0

    async def _flip_bit(self) -> None:
        """A bit of a sealed segment, or of its index, is another for a while; then the file is restored. In blocks that
        none behind them vouches for it could not be told from a torn write: those of one write may lie in two segments,
        and a start vouches for nothing before it writes."""
        node, rng = self._node(), self._rng
        if node.serving is None or node.damaged:
            return
        if rng.random() < 0.3:
            await self._rot_last_write(node)
            return
        newest = segment_name(sequence_of(node.serving.journal.end))
        sealed = [path for path in node.disk1.paths() if path.startswith("journal/0") and path[8:] < newest[:-4]]
        if not sealed:
            return
        path = rng.choice(sealed)
        content = node.disk1.content(path)
        if not (written := len(content.rstrip(b"\0"))):
            return
        at = rng.randrange(written)
        if path.endswith(".wal"):
            place = position_of(_sequence(path), max(at, FIRST_BLOCK))
            if place >= _vouched(node):
                return
        node.disk1.troubles += 1
        node.damaged.append(path)
        node.disk1.flip(path, damaged := 8 * at + rng.randrange(8))
        flipped = node.disk1.content(path)[at]
        await asyncio.sleep(self._some_time())
        if path in node.disk1.paths() and node.disk1.content(path)[at : at + 1] == bytes([flipped]):
            node.disk1.flip(path, damaged)
        node.damaged.remove(path)

    async def _rot_last_write(self, node: SimulatedNode) -> None:
        """A node is killed, and a bit of the last block that it has written is another when it comes back. One node
        at a time: with the last writes of two gone nobody may have what they acknowledged."""
        if node.life_stopped or not self._one_may_forget():
            return
        node.lose_power(keep_all=True)
        node.boot()
        segments = [path for path in node.disk1.paths() if path.startswith("journal/0") and path.endswith(".wal")]
        if not segments:  # nothing was ever written
            await self._restarted(node)
            return
        path = max(segments)
        last = max(blocks_in(node.disk1.content(path), position_of(_sequence(path), 0)),
                   key=lambda header: header.position, default=None)  # fmt: skip
        if last is not None:
            flipped = 8 * offset_of(last.position) + self._rng.randrange(8 * last.length)
            node.disk1.troubles += 1
            node.damaged.append(path)
            node.disk1.flip(path, flipped)
            rotten = node.disk1.content(path)[flipped // 8]
            ends_cut = node.starts.ends_cut
            await node.start()
            if node.starts.ends_cut == ends_cut:  # a checkpoint vouches for the block: somebody restores the file
                if node.up:  # not below a running node, which writes the page once more from its memory
                    node.lose_power(keep_all=True)
                    node.boot()
                if path in node.disk1.paths() and node.disk1.content(path)[flipped // 8] == rotten:
                    node.disk1.flip(path, flipped)
            node.damaged.remove(path)
        if not node.up:
            await self._restarted(node)

    async def _rot_manifest(self) -> None:
        """A node ends, cleanly or not; when it comes back a bit, or a page, of its manifest or of the log that sqlite
        keeps beside it is another. Either it does not start, says which file it is and what to do, and somebody
        restores the file; or it starts, and the manifest says what it said before."""
        node, rng = self._node(), self._rng
        if not node.up or node.serving is None or node.life_stopped or node.damaged:
            return
        if rng.random() < 0.5:
            node.lose_power()
        else:
            await node.stop()
        node.boot()
        if rng.random() < LOST_SHARE:
            await self._lose_manifest(node)
            return
        files = node.manifest_files()
        name = rng.choice(sorted(name for name, content in files.items() if any(content)))
        content = bytearray(files[name])
        at = rng.randrange(len(content))
        if not name.endswith("-wal"):  # most of a page is empty; in the log sqlite has numbers that no seed decides
            at = rng.choice([at for at, byte in enumerate(content) if byte])
        if rng.random() < 0.7:
            content[at] ^= 1 << rng.randrange(8)
        else:
            first = at - at % SQLITE_PAGE_BYTES
            content[first : first + SQLITE_PAGE_BYTES] = bytes(len(content[first : first + SQLITE_PAGE_BYTES]))
        damaged = files | {name: bytes(content)}
        marked = changes_marked(node.disk2)
        node.put_manifest(damaged)
        node.damaged.append(name)
        refused = False
        while not (started := await node.start()):
            refused = node.refusal is not None and Path(node.manifest_path).name in str(node.refusal)
            node.boot()
            if refused:
                break
            node.disk1.repair()  # what else goes wrong there is looked after first
            node.disk2.repair()
            await asyncio.sleep(0.2)
        node.damaged.remove(name)
        if started:
            what = f"node {node.node_id} starts though {name}, around byte {at}, is damaged:"
            before, now = read_manifest(files).expanded(), read_manifest(damaged).expanded()
            if name.endswith(
                "-wal"
            ):  # notes of when files were first seen are no changes: one that is lost is made anew
                kept = {file: before.seen.get(file, seen_ms) for file, seen_ms in now.seen.items()}
                require(now.seen == kept, f"{what} files were seen at {now.seen}, not {before.seen}", "F")
                now = now._replace(seen=before.seen)
            if self._is_unharmed(node, before, now, marked, what):
                self.manifests_unharmed += 1
        elif refused:
            self._require_remedy(node)
            self.manifests_refused.append(str(node.refusal))
            node.put_manifest(files)
            await self._restarted(node)

    async def _lose_manifest(self, node: SimulatedNode) -> None:
        """The manifest of a node that is off is gone, and maybe a bit of its copy on disk 2 is another. The node
        refuses to start. Either the manifest that the repair makes of the copy says what the lost one said, or the
        repair names what is damaged, and somebody restores both."""
        rng, disk, files = self._rng, node.disk2, node.manifest_files()
        name, marked_changes = Path(node.manifest_path).name, changes_marked(disk)
        lost, flipped = read_manifest(files).expanded(), ""
        copies = [path for path in disk.paths() if path.startswith(f"{COPY_DIRECTORY}/") and disk.content(path)]
        if copies and rng.random() < 0.7:
            flipped = rng.choice(copies)
            bit = rng.randrange(8 * len(disk.content(flipped)))
            disk.flip(flipped, bit)
        self.copies_rotten += bool(flipped)
        node.put_manifest({})
        node.damaged.append(name)
        while not (started := await node.start()):
            refused = node.refusal is not None and name in str(node.refusal)
            node.boot()
            node.disk1.repair()
            disk.repair()
            if refused:
                break
            await asyncio.sleep(0.2)
        node.damaged.remove(name)
        if started:
            require(not lost.changes, f"node {node.node_id} starts without its manifest, which had changes", "F")
            if flipped:
                disk.flip(flipped, bit)
            return
        self._require_remedy(node)
        try:
            rebuild = await examine(disk, await marked(disk))
        except StorageError as error:
            require(bool(flipped), f"node {node.node_id}: a copy that nothing has damaged is refused: {error}", "F")
            require(flipped in str(error), f"the repair does not name {flipped}: {error}")
            self.copies_refused += 1
            node.put_manifest(files)
        else:
            said = rebuild.copied.contents
            what = f"node {node.node_id} has its manifest made anew, bit {bit if flipped else 0} of {flipped} damaged:"
            require(said.seen.items() <= lost.seen.items(), f"{what} it has seen {said.seen}, not {lost.seen}", "F")
            self._is_unharmed(node, lost, said._replace(seen=lost.seen), marked_changes, what)
            put(Path(node.manifest_path), rebuild, node.clock.now_ms())
            self.manifests_made += 1
        if flipped:
            disk.flip(flipped, bit)
        await self._restarted(node)

    def _is_unharmed(self, node: SimulatedNode, before: Contents, now: Contents, marked: int, what: str) -> bool:
        """Whether a manifest on which a node starts says what it said. Only a change that the store's mark had not
        been told of may be missing, which cannot be told from one that was being made: the node makes it once more."""
        if marked == now.changes < before.changes:
            for group, at in now.positions.items():
                require(at.position <= before.positions[group].position, f"{what} group {group} is split to {at}", "F")
            return False
        if now.identity is None and not before.changes:  # nothing but its identity is lost, which the mark gives back
            now = now._replace(identity=node.storage.queue_store.manifest.identity)
        for said, says in zip(before, now, strict=True):
            require(said == says, f"{what} the manifest says {says}, not {said}", "F")
        return True

    def _require_remedy(self, node: SimulatedNode) -> None:
        require(
            isinstance(node.refusal, StorageError) and REMEDY.search(str(node.refusal)) is not None,
            f"node {node.node_id} refuses its manifest, and does not say what to do: {node.refusal!r}",
        )

    def _one_may_forget(self) -> bool:
        """Whether no node has forgotten anything that it has not got back, nor is about to."""
        nodes = self._cluster.nodes.values()
        return all(node.up and not node.damaged and not node.starts.lost for node in nodes)

    async def _full_disk(self) -> None:
        node = self._node()
        node.disk1.fill_up(self._rng.choice([0, 4096, 30_000]))
        await asyncio.sleep(self._some_time())
        node.disk1.capacity_bytes = None
        await self.restart_failed(node)


def read_manifest(files: dict[str, bytes]) -> Contents:
    """The rows that a node would read in these files of a manifest."""
    with tempfile.TemporaryDirectory() as directory:
        for name, content in files.items():
            (Path(directory) / name).write_bytes(content)
        database = Database(str(Path(directory) / min(files)))
        try:
            return database.open()
        finally:
            database.close()


def changes_marked(disk: NodeDisk) -> int:
    """The changes of the manifest that the mark of the store on a disk knows of."""
    content = disk.content(MARK_NAME) if MARK_NAME in disk.paths() else b""
    marks = [StoreMark.unpack(content[at : at + MARK.size]) for at in (0, SLOT_DISTANCE)]
    return max((mark.changes for mark in marks if mark is not None), default=0)


def _vouched(node: SimulatedNode) -> int:
    """Journal position up to which a durable block on the disk says that the blocks before it were durable."""
    durable_end = node.storage.journal.durable_end
    return max((
        block.durable_position
        for path in node.disk1.paths() if path.startswith("journal/0") and path.endswith(".wal")
        for block in blocks_in(node.disk1.content(path), position_of(_sequence(path), 0))
        if block.end <= durable_end
    ), default=0)  # fmt: skip


def _sequence(path: str) -> int:
    """Of the journal segment at a path."""
    return int(path.removeprefix("journal/").removesuffix(".wal"))
