"""Nodes tell each other their load: rates per write group, and measures of a node as a whole; and what they have moved.

A node's heartbeat carries its own; the metadata leader's report has those of all nodes that it has heard lately.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

WRITE_GROUPS_TOLD_MAX = 1_000
"""In one heartbeat, the busiest first: 50 kB. A node that leads more leaves out those that weigh next to nothing."""

NODES_TOLD_MAX = 1_000

BY_BALANCER = "the balancer: "
"""The reason of a move that the balancer began starts with it; no other does."""

MOVES_TOLD_MAX = 200
"""Moves that a node remembers to have begun: those of some days of work on a cluster; 40 kB."""

Rate = Annotated[float, msgspec.Meta(ge=0)]
Bytes = Annotated[int, msgspec.Meta(ge=0)]


QUEUES_TOLD_MAX = 4
"""Of a write group: each brings a tenth of it at least."""


class ToldQueuePart(msgspec.Struct, frozen=True, array_like=True):
    """A queue, with its part of the bytes that its write group takes in, 0 to 1."""

    queue_id: Annotated[int, msgspec.Meta(ge=0)]
    part: Rate


class ToldWriteGroupLoad(msgspec.Struct, frozen=True, array_like=True):
    """A write group's traffic, as the node that serves it measures it: rates per second, smoothed."""

    group: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
    bytes_in: Rate
    """Of record batches appended."""
    bytes_out: Rate
    """Of record batches read."""
    requests: Rate
    """Batches appended, and reads of a queue that returned some."""
    seconds: Rate = 0.0
    """How long the node has measured this."""
    busiest: Annotated[list[ToldQueuePart], msgspec.Meta(max_length=QUEUES_TOLD_MAX)] = []
    """The queues that bring most of it, the busiest first; empty: none brings much, or the node does not say."""


class ToldLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A node's load."""

    write_groups: Annotated[list[ToldWriteGroupLoad], msgspec.Meta(max_length=WRITE_GROUPS_TOLD_MAX)] = []
    """Those that it serves."""
    cpu_share: Rate = 0.0
    """The part of the machine's processors that the node's process takes, 0 to 1."""
    sync_share: Rate = 0.0
    """The part of the time in which the node waits for disk 1 to have made something durable, 0 to 1."""
    write_free_bytes: Bytes = 0
    write_total_bytes: Bytes = 0
    store_free_bytes: Bytes = 0
    store_total_bytes: Bytes = 0
    """Of a disk 2 of its own; 0: it has none."""


class ToldNodeLoad(msgspec.Struct, frozen=True):
    """The load that a node told `age_seconds` ago."""

    node: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    age_seconds: Rate
    load: ToldLoad


class ToldLoads(msgspec.Struct, frozen=True):
    """The loads that the metadata leader knows. `write_groups` have one entry each: of a write group that has changed
    its leader lately, what the leader before measured."""

    nodes: Annotated[list[ToldNodeLoad], msgspec.Meta(max_length=NODES_TOLD_MAX)]
    write_groups: list[ToldWriteGroupLoad]


class ToldMove(msgspec.Struct, frozen=True, array_like=True):
    """The replica of a write group on node `old` was to move to node `new`; or, with `preferred`, the one on `new` was
    to lead in place of the one on `old`. `why` is for people."""

    group: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
    old: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    new: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    preferred: bool
    why: str
    age_seconds: Rate = 0.0

    @property
    def by_balancer(self) -> bool:
        return self.why.startswith(BY_BALANCER)


class ToldSlotMove(msgspec.Struct, frozen=True, kw_only=True):
    """A partition was to move from write group `old` to write group `new`, with its slot; or, with `taken_back`, that
    was taken back before it began. `why` is for people."""

    slot: Annotated[int, msgspec.Meta(ge=0)]
    topic: str
    partition: Annotated[int, msgspec.Meta(ge=0)]
    old: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
    new: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
    why: str
    age_seconds: Rate = 0.0
    taken_back: bool = False

    @property
    def by_balancer(self) -> bool:
        return self.why.startswith(BY_BALANCER)


class ToldBalancer(msgspec.Struct, frozen=True, kw_only=True):
    """The balancer of the metadata leader, where it is on."""

    mode: str
    """`leaders`, `replicas`, which is both, or `queues`, which is these and queues."""
    looked: bool = False
    """Whether it has looked since the node leads the metadata."""
    waits_for: str = ""
    """Why it began nothing at its last look, in words; empty: it did, or nothing has too much to do."""
    moves_last_hour: Annotated[int, msgspec.Meta(ge=0)] = 0
    moves_per_hour_max: Annotated[int, msgspec.Meta(ge=0)] = 0
