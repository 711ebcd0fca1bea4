"""One node's part in one group."""

from __future__ import annotations

import random
from collections.abc import Sequence

from mainstem.raft.config import RaftConfig
from mainstem.raft.entry import KIND_DATA, Entry, HardState, Snapshot
from mainstem.raft.log_store import LogStore
from mainstem.raft.membership import LoggedMembership, Membership, MembershipChange
from mainstem.raft.messages import Message
from mainstem.raft.ready import Ready
from mainstem.raft.roles import Role


class RaftCore:
    """Not reentrant but in one way: between `ready` and `advance` everything may be called but `ready`, which then
    returns None."""

    def __init__(
        self,
        config: RaftConfig,
        log: LogStore,
        hard_state: HardState,
        memberships: Sequence[LoggedMembership],
        random: random.Random,
        *,
        applied_index: int = 0,
    ) -> None:
        """`memberships`, oldest first: the one of the snapshot the log begins behind (index 0: what the group began
        with), then one for each membership entry in the log. `applied_index`: what the driver's state has in it
        already; at least `log.first_index() - 1`. Everything in `log` is durable."""
        raise NotImplementedError

    # --- what can be seen, any time ---

    role: Role
    term: int
    leader_id: int
    """Who leads the term; 0: nobody known."""
    serves: bool
    """Leads, and has applied an entry of its own term: all that was ever committed is applied."""
    membership: Membership
    """The newest in the log, committed or not."""
    last_index: int
    commit_index: int
    applied_index: int
    persisted_index: int

    def durable_index(self, count: int) -> int:
        """Leader: the highest index that at least `count` voters hold durably; from a majority on never beyond the
        commit index. 0 elsewhere, or if there are fewer voters."""
        raise NotImplementedError

    # --- what happens ---

    def tick(self) -> None:
        """Time passes by one tick."""
        raise NotImplementedError

    def step(self, message: Message) -> None:
        """A message arrived for this node."""
        raise NotImplementedError

    def propose(self, data: object, size: int, kind: int = KIND_DATA) -> Entry:
        """Put one entry behind the log; it has its index and term. It is committed, or truncated if this node ceases to
        lead. Raises `NotLeader`; `NotReady` while handing over or when too much is uncommitted."""
        raise NotImplementedError

    def propose_membership(self, change: MembershipChange) -> Entry:
        """Log the membership after one change; it counts at once. Raises `NotLeader`, `NotReady` (nothing of this
        term is committed yet, another change is under way) or `MembershipRefused`."""
        raise NotImplementedError

    def transfer_leadership(self, to: int) -> None:
        """Have a voter catch up and lead; given up after an election timeout. Raises `NotLeader`, or
        `MembershipRefused` if it has no vote."""
        raise NotImplementedError

    def read_index(self, context: object) -> None:
        """Ask from when on the applied state may answer a read that came in now: `Ready.reads` brings `context` back
        then. A follower asks its leader, and the answer may get lost: use a timeout. Raises `NotLeader` (no leader is
        known), `NotReady` (nothing of this term is committed yet, too many reads wait)."""
        raise NotImplementedError

    def campaign(self) -> None:
        """Stand for election now, if this node may."""
        raise NotImplementedError

    # --- news from the disk and the network ---

    def hard_state_persisted(self, hard_state: HardState) -> None:
        """A hard state that a Ready brought is durable."""
        raise NotImplementedError

    def persisted(self, index: int, term: int) -> None:
        """The log is durable up to the entry (`index`, `term`)."""
        raise NotImplementedError

    def snapshot_installed(self, snapshot: Snapshot) -> None:
        """State and log are replaced by `Ready.snapshot`, durably: the log store begins behind it, and is empty."""
        raise NotImplementedError

    def snapshot_failed(self, snapshot: Snapshot) -> None:
        """`Ready.snapshot` could not be installed, nothing changed."""
        raise NotImplementedError

    def report_unreachable(self, peer: int) -> None:
        """A message to `peer` could not be sent: sends to it are tried one by one until it answers."""
        raise NotImplementedError

    def report_snapshot(self, peer: int, ok: bool) -> None:
        """Sending a snapshot to `peer` ended, well or not."""
        raise NotImplementedError

    # --- what is to be done ---

    def ready(self) -> Ready | None:
        """What is to be done, or None. The same things are handed out once."""
        raise NotImplementedError

    def advance(self, ready: Ready) -> None:
        """The log store shows what `ready` brought, and its committed entries are applied."""
        raise NotImplementedError
