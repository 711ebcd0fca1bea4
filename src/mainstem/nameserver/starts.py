"""What a node remembers of starts: its own, those of others as they were shown, and whether it has forgotten something.

Each start draws a nonce and shows it, with those before it, to the other nodes, before it says anything else. Each of
them remembers the newest it saw. Whoever comes with a list that lacks it runs on an older copy of its directories: it
has forgotten votes it gave and entries it acknowledged. (A counter would not tell: a copy that was taken before the
last start counts the same.) A value without files, clocks and network; `starts_file` keeps it, `start_check` shows it.

Invariants: a nonce is in the list on disk before it is shown; what another one shows is on disk before it is answered;
that something was forgotten is on disk before anybody is told so, and until it is got back, group by group.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from mainstem.rpc.identity import Identity
from mainstem.rpc.raft_member import METADATA_GROUP
from mainstem.rpc.starts import STARTS_MAX, StartShown


class Loss(enum.Enum):
    NOTHING = ""
    COPY = "copy"
    """The directories are an older copy: votes and entries are forgotten, of all groups."""
    POWER = "power"
    """What was acknowledged and not synced may be lost with the power: entries of write groups, no votes."""


class Seen(msgspec.Struct, frozen=True):
    """The newest nonce of another node."""

    incarnation: bytes
    nonce: bytes


class Remembers(msgspec.Struct, frozen=True):
    """As it is on the disk. Fields come with defaults: older and newer versions read it."""

    node_id: int = 0
    drawn: list[bytes] = []
    seen: dict[int, Seen] = {}
    loss: str = ""
    why: str = ""
    recovered: list[int] = []
    """Of the Raft groups those that are got back."""
    written: dict[str, bytes] = {}
    """File → nonce of a start that has written it: what is there now was written by that one, or by a later one."""
    given_up: list[int] = []
    """Nodes that are lost for good: this one goes on without them, as the only member of every Raft group…"""
    alone_from: dict[int, int] = {}
    """…from this entry of a group on, until a later one says who else is a member."""
    boot: str = ""
    """Of the machine, when the last start was."""
    ended_well: bool = False


class Judged(NamedTuple):
    remembers: Remembers
    matches: bool


def begun(before: Remembers, node_id: int, nonce: bytes, boot: str, *, acknowledges_unsynced: bool) -> Remembers:
    """A start. `boot` names the machine's own start; empty where that cannot be known."""
    after = msgspec.structs.replace(
        before, node_id=node_id, drawn=[*before.drawn, nonce][-STARTS_MAX:], boot=boot, ended_well=False
    )
    rebooted = bool(before.boot and boot) and before.boot != boot
    if not (acknowledges_unsynced and rebooted and not before.ended_well):
        return after
    if before.loss == Loss.COPY.value:  # not got back yet, or not all
        return msgspec.structs.replace(after, recovered=[it for it in before.recovered if it == METADATA_GROUP])
    return lost(after, Loss.POWER, "the machine went down under durability = async")


def lost(before: Remembers, loss: Loss, why: str) -> Remembers:
    return msgspec.structs.replace(before, loss=loss.value, why=why, recovered=[])


def got_back(before: Remembers, group: int) -> Remembers:
    return msgspec.structs.replace(before, recovered=sorted({*before.recovered, group}))


def all_got_back(before: Remembers) -> Remembers:
    return msgspec.structs.replace(before, loss=Loss.NOTHING.value, why="", recovered=[])


def is_older(remembers: Remembers, name: str, nonce: bytes) -> bool:
    """Whether a file that a start with this nonce, or one that begins so, wrote last is an older copy of itself. Empty:
    a version that writes no nonces wrote it."""
    known = remembers.written.get(name)
    if known is None or known not in remembers.drawn or not nonce:
        return False
    since = remembers.drawn[remembers.drawn.index(known) :]
    return not any(one.startswith(nonce) for one in since)


def votes_lost(before: Remembers, why: str) -> Remembers:
    """What the write groups promised is forgotten; what the metadata promised is not, unless it was."""
    recovered = [] if has_lost(before, METADATA_GROUP) else [METADATA_GROUP]
    return msgspec.structs.replace(lost(before, Loss.COPY, why), recovered=recovered)


def has_lost(remembers: Remembers, group: int) -> bool:
    """Whether what was forgotten of a Raft group is not got back yet."""
    concerned = remembers.loss == Loss.COPY.value or (remembers.loss == Loss.POWER.value and group != METADATA_GROUP)
    return concerned and group not in remembers.recovered


def judged(before: Remembers, caller: Identity, shown: StartShown) -> Judged:
    """Another node shows its starts. One on a new directory is not to be told by them; one that knows that it has
    forgotten something begins anew."""
    seen = before.seen.get(caller.node_id)
    if caller.node_id in before.given_up and not shown.forgot:
        return Judged(before, False)
    if (
        seen is not None
        and seen.incarnation == caller.incarnation
        and seen.nonce not in shown.drawn
        and not shown.forgot
    ):
        return Judged(before, False)
    newest = Seen(caller.incarnation, shown.drawn[-1])
    return Judged(msgspec.structs.replace(before, seen=before.seen | {caller.node_id: newest}), True)


def left_alone(before: Remembers, given_up: list[int]) -> Remembers:
    """All other nodes that there are now are lost for good."""
    return msgspec.structs.replace(believed(before), given_up=sorted({*before.given_up, *given_up}), alone_from={})


def believed(before: Remembers) -> Remembers:
    """The directories are what there is, whatever anybody remembers: nothing counts as forgotten, by this node or by
    others."""
    return msgspec.structs.replace(before, seen={}, loss=Loss.NOTHING.value, why="", recovered=[], boot="")
