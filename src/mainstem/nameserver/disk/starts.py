"""A node remembers its own starts and those that others showed it, and judges whether a node has forgotten
something.

Each start draws a nonce and shows it, with those before it, to the other nodes, before it says anything else. Each of
them remembers the newest nonce it saw. A node whose list lacks that nonce runs on an older copy of its directories:
it has forgotten votes it gave and entries it acknowledged. (A counter would not tell: a copy that was taken before
the last start counts the same.) A value without files, clocks and network; `starts_file` keeps it, `start_check`
shows it.

Invariants: a nonce is in the list on disk before it is shown; another node's nonces are on disk before that node gets
an answer; a loss is on disk before any node is told of it, and stays there until it is made good, group by group.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from mainstem.rpc.messages.starts import STARTS_MAX, StartShown
from mainstem.rpc.raft.raft_member import METADATA_QUORUM
from mainstem.rpc.wire.identity import Identity

WHY_CHARS_MAX = 1_000
"""Characters of the joined reasons for a loss: several losses may come one after the other."""


class LossCause(enum.Enum):
    NOTHING = ""
    COPY = "copy"
    """The directories are an older copy: votes and entries of all Raft groups are forgotten."""
    POWER = "power"
    """A power failure may have taken acknowledged but unsynced entries of write groups, or the last write of the
    journal has gone bad since; no votes."""


class Seen(msgspec.Struct, frozen=True):
    """The newest nonce of another node."""

    incarnation: bytes
    nonce: bytes


class Remembers(msgspec.Struct, frozen=True):
    """The content of the file. Every field has a default, so that older and newer versions read it."""

    node_id: int = 0
    drawn: list[bytes] = []
    seen: dict[int, Seen] = {}
    loss: str = ""
    why: str = ""
    recovered: list[int] = []
    """The Raft groups whose loss is made good."""
    written: dict[str, bytes] = {}
    """File → nonce of a start that has written it: the file as it is now was written by that start, or a
    later one."""
    given_up: list[int] = []
    """Nodes that are lost for good: this one goes on without them, as the only member of every Raft group…"""
    alone_from: dict[int, int] = {}
    """…from this entry of a Raft group on, until a later entry names other members."""
    outdated: list[int] = []
    """Nodes whose nonce in `seen` is from an older copy of this node's directories: they may have been
    restored since, and have told every node but this copy."""
    restored: bool = False
    """These directories were an older copy once, or an operator had them believed: earlier starts may be
    missing."""
    boot: str = ""
    """The machine's boot id at the last start."""
    ended_well: bool = False
    acknowledged_unsynced: bool | None = None
    """Since the last start, or before it, the node may have acknowledged what was not synced yet; None: a version that
    does not note it wrote this."""


class Judged(NamedTuple):
    remembers: Remembers
    matches: bool
    outdated: bool = False
    """The list does not match what an older copy remembers."""


def begun(before: Remembers, node_id: int, nonce: bytes, boot: str, *, acknowledges_unsynced: bool) -> Remembers:
    """Note a new start. `boot` is the machine's boot id; empty where it cannot be known. The life that the power ended
    tells what it may have taken: the configuration may be another one now. The unsynced blocks of a killed process
    count until a later one ends well."""
    rebooted = bool(before.boot and boot) and before.boot != boot
    known = before.acknowledged_unsynced
    unsynced = (acknowledges_unsynced if known is None else known) and not before.ended_well
    after = msgspec.structs.replace(
        before,
        node_id=node_id,
        drawn=[*before.drawn, nonce][-STARTS_MAX:],
        boot=boot,
        ended_well=False,
        acknowledged_unsynced=acknowledges_unsynced or (unsynced and not rebooted),
    )
    if not (unsynced and rebooted):
        return after
    return ends_lost(after, "the machine went down under durability = async")


def lost(before: Remembers, loss: LossCause, why: str) -> Remembers:
    return msgspec.structs.replace(before, loss=loss.value, why=why, recovered=[])


def ends_lost(before: Remembers, why: str) -> Remembers:
    """The logs of all write groups may have gone further. If more was forgotten, and is not got back yet or not all, it
    does not become less."""
    text = why if before.why in ("", why) else f"{before.why}; {why}"[:WHY_CHARS_MAX]
    if before.loss == LossCause.COPY.value:
        metadata = [group for group in before.recovered if group == METADATA_QUORUM]
        return msgspec.structs.replace(before, why=text, recovered=metadata)
    return lost(before, LossCause.POWER, text)


def copied(before: Remembers, why: str) -> Remembers:
    """Note that the directories are an older copy, and so are their memories of other nodes."""
    return msgspec.structs.replace(lost(before, LossCause.COPY, why), restored=True, outdated=sorted(before.seen))


def got_back(before: Remembers, group: int) -> Remembers:
    return msgspec.structs.replace(before, recovered=sorted({*before.recovered, group}))


def all_got_back(before: Remembers) -> Remembers:
    return msgspec.structs.replace(before, loss=LossCause.NOTHING.value, why="", recovered=[])


def is_older(remembers: Remembers, name: str, nonce: bytes) -> bool:
    """Whether a file is an older copy of itself; `nonce` is that of the start that wrote it last, or its
    beginning. Empty: a version that writes no nonces wrote the file."""
    known = remembers.written.get(name)
    if known is None or known not in remembers.drawn or not nonce:
        return False
    since = remembers.drawn[remembers.drawn.index(known) :]
    return not any(one.startswith(nonce) for one in since)


def votes_lost(before: Remembers, why: str) -> Remembers:
    """Note that the write groups' promises are forgotten; those of the metadata are not, unless they were
    before."""
    recovered = [] if has_lost(before, METADATA_QUORUM) else [METADATA_QUORUM]
    return msgspec.structs.replace(lost(before, LossCause.COPY, why), recovered=recovered)


def blocks_lost(before: Remembers, groups: Collection[int], count: int, why: str) -> Remembers:
    """Note that `groups`, of `count` write groups, have forgotten part of what they acknowledged; the others
    have not, unless they had before."""
    known = [group for group in range(count) if group not in groups and not has_lost(before, group)]
    metadata = [] if has_lost(before, METADATA_QUORUM) else [METADATA_QUORUM]
    text = why if before.why in ("", why) else f"{before.why}; {why}"
    return msgspec.structs.replace(
        lost(before, LossCause.COPY, text[:WHY_CHARS_MAX]), recovered=sorted([*metadata, *known])
    )


def has_lost(remembers: Remembers, group: int) -> bool:
    """Whether the loss of a Raft group is not made good yet."""
    concerned = remembers.loss == LossCause.COPY.value or (
        remembers.loss == LossCause.POWER.value and group != METADATA_QUORUM
    )
    return concerned and group not in remembers.recovered


def judged(before: Remembers, caller: Identity, shown: StartShown) -> Judged:
    """Judge the starts that another node shows. A node on a new directory is not judged by starts of an older
    one; a node that knows of its loss begins anew. The memories of an older copy accuse no node that may have
    been restored since, and that a majority believes."""
    seen = before.seen.get(caller.node_id)
    if caller.node_id in before.given_up and not shown.forgot:
        return Judged(before, False)
    if (
        seen is not None
        and seen.incarnation == caller.incarnation
        and seen.nonce not in shown.drawn
        and not shown.forgot
    ):
        outdated = caller.node_id in before.outdated and shown.restored
        if not (outdated and shown.believed):
            return Judged(before, False, outdated)
    newest = Seen(caller.incarnation, shown.drawn[-1])
    outdated_still = [node_id for node_id in before.outdated if node_id != caller.node_id]
    all_seen = before.seen | {caller.node_id: newest}
    return Judged(msgspec.structs.replace(before, seen=all_seen, outdated=outdated_still), True)


def left_alone(before: Remembers, given_up: list[int]) -> Remembers:
    """Note that all other present nodes are lost for good."""
    return msgspec.structs.replace(believed(before), given_up=sorted({*before.given_up, *given_up}), alone_from={})


def believed(before: Remembers) -> Remembers:
    """Take the directories as they are, whatever any node remembers: neither this node nor another counts as
    having forgotten."""
    return msgspec.structs.replace(
        before, seen={}, outdated=[], restored=True, loss=LossCause.NOTHING.value, why="", recovered=[], boot=""
    )
