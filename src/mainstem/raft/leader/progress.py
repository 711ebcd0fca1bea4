"""A leader's record of one other member, and how it may send to it.

    probe       the last matching entry is not known: one small append at a time, the next after an answer
    replicate   pipelined: appends follow each other until a window (entries, bytes) is full
    snapshot    the entries it needs are gone: nothing is sent until a snapshot is there

`match_index` is the last entry the member holds durably; `next_index` the entry it is sent next. A member that is slow,
silent or receives a snapshot delays no other.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import NamedTuple

from mainstem.raft.messages import Heartbeat


class SendState(enum.Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class PeerView(NamedTuple):
    """A leader's record of a member, for status pages and placement."""

    node_id: int
    state: SendState
    match_index: int
    next_index: int
    active: bool
    """True when it was heard since the count of the majority before the last: just behind a count nobody was heard."""
    forgetful: bool = False
    """True when it came back with less than it had acknowledged."""


class Progress:
    __slots__ = (
        "_window",
        "active",
        "bytes_in_flight",
        "forgetful",
        "heartbeat",
        "match_index",
        "next_index",
        "node_id",
        "paused",
        "probe_due",
        "read_context",
        "sent_commit_index",
        "snapshot_index",
        "state",
        "was_active",
    )

    def __init__(self, node_id: int, next_index: int) -> None:
        self.node_id = node_id
        self.state = SendState.PROBE
        self.match_index = 0
        self.next_index = next_index
        self.active = False
        """True when it was heard since the last count of the majority."""
        self.was_active = False
        """True when it was heard between the last two."""
        self.forgetful = False
        """True when it came back with less than it had acknowledged; older answers may still arrive."""
        self.paused = False
        """True while a probe is under way (probe): wait for an answer to it or to a heartbeat."""
        self.probe_due = False
        """True when it must be asked whether everything sent has arrived (replicate)."""
        self.sent_commit_index = 0
        self.snapshot_index = 0
        self.read_context = 0
        """The newest read context this member confirmed."""
        self.bytes_in_flight = 0
        self._window: deque[tuple[int, int]] = deque()
        self.heartbeat: Heartbeat | None = None
        """The last heartbeat, sent again as long as its content is the same."""

    @property
    def view(self) -> PeerView:
        active = self.active or self.was_active
        return PeerView(self.node_id, self.state, self.match_index, self.next_index, active, self.forgetful)

    def sent(self, last_index: int, size: int) -> None:
        """Note that entries up to `last_index`, of `size` bytes, are on their way (replicate)."""
        self.next_index = last_index + 1
        self.bytes_in_flight += size
        self._window.append((last_index, size))

    def probe(self, next_index: int, *, paused: bool = False) -> None:
        """Count everything sent and not acknowledged as lost, and probe at `next_index`."""
        self.state = SendState.PROBE
        self.next_index = max(next_index, self.match_index + 1)
        self.paused = paused
        self.sent_commit_index = min(self.sent_commit_index, self.next_index - 1)
        self._empty_window()

    def forgot(self) -> None:
        """Forget what the member had acknowledged, because it lost entries, and probe it anew."""
        self.match_index = 0

    def receive_snapshot(self, index: int) -> None:
        self.state = SendState.SNAPSHOT
        self.snapshot_index = index
        self._empty_window()

    def accepted(self, match_index: int, log_first_index: int) -> bool:
        """Note that the member holds the log up to `match_index`. Returns whether that is news."""
        news = match_index > self.match_index
        if news:
            self.match_index = match_index
            self.next_index = max(self.next_index, match_index + 1)
            window = self._window
            while window and window[0][0] <= match_index:
                self.bytes_in_flight -= window.popleft()[1]
        if self.state is SendState.PROBE or (
            self.state is SendState.SNAPSHOT and news and match_index + 1 >= log_first_index
        ):
            if self.state is SendState.SNAPSHOT:
                self.next_index = match_index + 1
            self.state = SendState.REPLICATE
            self.paused = False
        return news

    def rejection_is_news(self, previous_index: int) -> bool:
        """Whether a rejection is still news: answers may be repeated, or overtaken by others."""
        if self.state is SendState.PROBE:
            return previous_index == self.next_index - 1 and previous_index > self.match_index
        return self.state is SendState.REPLICATE and self.match_index < previous_index < self.next_index

    def _empty_window(self) -> None:
        self._window.clear()
        self.bytes_in_flight = 0
        self.probe_due = False
