"""What nodes say about their starts, and what one that has forgotten something asks of those who have not.

`SHOW_START` comes before anything else a node says after a start. A node whose directories are an older copy of its own
cannot know what its last start drew, and is found out by whoever does.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.rpc.errors import Refused
from mainstem.rpc.method import Method

NONCE_BYTES = 8
STARTS_MAX = 1024
"""A node that was away for more starts of another one takes that for forgetful, which costs it a catching up."""

Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class CannotTell(Refused):
    """Not by this node, or not now."""

    kind = "cannot tell"


class StartShown(msgspec.Struct, frozen=True):
    """`drawn`: what each start of the caller drew, as far as its directory remembers, that of now last. `forgot`: it
    knows that it has forgotten something, and acts on it."""

    drawn: Annotated[list[Nonce], msgspec.Meta(min_length=1, max_length=STARTS_MAX)]
    forgot: bool


class StartJudged(msgspec.Struct, frozen=True):
    """`matches`: what the callee last saw of the caller is among what was drawn, or it never saw any. Then it has taken
    the newest, durably."""

    matches: bool


class MemberForgot(msgspec.Struct, frozen=True):
    """The caller, silent since its start, has forgotten votes or entries of this Raft group."""

    group: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]


class Remembered(msgspec.Struct, frozen=True):
    """The entry `index` was logged after the caller asked, by the leader of `term`, and a majority without the caller
    has it: whoever has that entry has all that the caller ever acknowledged."""

    term: Annotated[int, msgspec.Meta(ge=1)]
    index: Annotated[int, msgspec.Meta(ge=1)]


class AskMember(msgspec.Struct, frozen=True):
    group: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]


class MemberLog(msgspec.Struct, frozen=True):
    """How far a member's log goes. `lost_power`: it may have lost its end, as what it acknowledged was not synced, and
    takes no part since; `led`: it hears a leader, or is one."""

    last_term: int
    last_index: int
    lost_power: bool
    led: bool


SHOW_START = Method(120, "starts.show", StartShown, StartJudged, nodes_only=True)
METADATA_FORGOT = Method(121, "starts.metadata_forgot", MemberForgot, Remembered, (CannotTell,), nodes_only=True)
MEMBER_FORGOT = Method(122, "starts.member_forgot", MemberForgot, Remembered, (CannotTell,), nodes_only=True)
MEMBER_LOG = Method(123, "starts.member_log", AskMember, MemberLog, (CannotTell,), nodes_only=True)
