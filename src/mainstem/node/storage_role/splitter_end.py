"""The storage role's end towards splitters: the calls that they make, and the splitter that runs beside the node."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from functools import partial

import msgspec

from mainstem.node.roles_setup import RolesSetup
from mainstem.pipeline.embedded.supervisor import SplitSupervisor
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.split import MergeWaits
from mainstem.rpc.messages.tier import STORE_ACCESS, StoreAccess
from mainstem.rpc.wire.method import Nothing, Reply
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.role import Storage
from mainstem.storage.split.compaction_service import CompactionService
from mainstem.storage.split.merge_service import MergeService
from mainstem.storage.split.split_lease import SplitLease
from mainstem.storage.split.split_service import SplitService
from mainstem.storage.split.tier_service import TierService

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SplitterEnd:
    """Made by `open`; closed by the stack of the roles."""

    split: SplitService
    supervisor: SplitSupervisor
    _setup: RolesSetup

    @classmethod
    def open(cls, setup: RolesSetup, storage: Storage) -> SplitterEnd:
        """Answer splitters from now on."""
        config, stack, clock, handlers = setup.config, setup.stack, setup.ports.clock, setup.ports.handlers
        lease = SplitLease(clock, storage.hard_states.sequence, lambda: uuid.uuid4().hex)
        split = SplitService(
            storage.split_log,
            clock,
            lease,
            storage.pacing,
            lambda: storage.messages.appended_bytes,
            setup.supervision,
            storage.merge_log.is_busy,
            lambda: storage.merge_log.unmerged_bytes() + storage.tier_log.waiting_bytes(),
        )
        stack.push_async_callback(split.close)
        split.register(handlers)
        merges = MergeService(storage.merge_log, lease, setup.supervision)
        stack.push_async_callback(merges.close)
        merges.register(handlers)
        compactions = CompactionService(storage.compaction_log, lease, merges.turn, setup.supervision)
        stack.push_async_callback(compactions.close)
        compactions.register(handlers)
        uploads = TierService(storage.tier_log, lease, merges.turn, setup.supervision)
        stack.push_async_callback(uploads.close)
        uploads.register(handlers)
        if config.shares_store:
            handlers.unary(STORE_ACCESS, partial(store_access, config.object_store))
        supervisor = SplitSupervisor(
            config.pipeline if not config.read_only else msgspec.structs.replace(config.pipeline, mode="off"),
            split,
            store_dir=str(setup.ports.store_dir),
            clock=clock,
            tls=config.rpc_tls,
            supervision=setup.supervision,
            merge_waits=partial(_store_waits, storage),
        )
        return cls(split, supervisor, setup)

    async def start(self, http: str) -> None:
        """Begin to run the splitter beside the node, which finds it at this HTTP address."""
        scheme = "https" if self._setup.config.console.certificate else "http"
        await self.supervisor.start(node=f"{scheme}://{http}")
        self._setup.stack.push_async_callback(self.supervisor.close)
        log.info("splitter %s (%s)", self.supervisor.state, self._setup.config.pipeline.master)


async def _store_waits(storage: Storage) -> MergeWaits:
    """How much of the queue store waits to be merged or, where nothing does, to be uploaded or to be compacted."""
    found = MergeWaits(0)
    for waits in (storage.merge_log.waits, storage.tier_log.waits, storage.compaction_log.waits):
        found = await waits()
        if found.bytes or found.more:
            break
    return found


async def store_access(config: ObjectStoreConfig, call: RpcCall[Nothing]) -> Reply[StoreAccess]:
    return Reply(StoreAccess(msgspec.json.encode(config)))
