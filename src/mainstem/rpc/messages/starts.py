"""A node shows its start to the others, and asks them for help when it has forgotten something.

`SHOW_START` comes before anything else a node says after a start. A node whose directories are an older copy of
themselves cannot know what its last start drew; a node that has seen that start finds it out.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mainstem.rpc.errors import Refused
from mainstem.rpc.wire.method import Method

NONCE_BYTES = 8
STARTS_MAX = 1024
"""Starts in one message. A node that missed more starts of another one takes that one for forgetful, which
costs it a catching up."""

Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class CannotTell(Refused):
    """This node cannot tell, or not now."""

    kind = "cannot tell"


class StartShown(msgspec.Struct, frozen=True):
    """`drawn`: the nonces of the caller's starts, as far as its directory remembers them, the present one
    last. `forgot`: the caller knows that it has forgotten something, and acts on it. `restored`: an earlier
    start found out the same, or an operator had it believe what is there, so that starts before that one may
    be missing. `believed`: a majority, not counting nodes on an older copy, has judged this start and found
    nothing. Older versions neither send nor read the last two."""

    drawn: Annotated[list[Nonce], msgspec.Meta(min_length=1, max_length=STARTS_MAX)]
    forgot: bool
    restored: bool = False
    believed: bool = False


class StartJudged(msgspec.Struct, frozen=True):
    """`matches`: the nonce that the callee last saw of the caller is among `drawn`, or it never saw one. It
    has then noted the newest, durably. `outdated`: the nonce does not match, but the callee remembers it from
    an older copy of its own directories, and the caller was restored, perhaps since that copy was made; other
    nodes have to tell. Older versions do not send `outdated`, and read it as they always did: as no match."""

    matches: bool
    outdated: bool = False


class MemberForgot(msgspec.Struct, frozen=True):
    """The caller, silent since its start, has forgotten votes or entries of this Raft group."""

    group: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]


class Remembered(msgspec.Struct, frozen=True):
    """The leader of `term` logged entry `index` after the caller asked, and a majority without the caller has
    it: a node that has that entry has all that the caller ever acknowledged."""

    term: Annotated[int, msgspec.Meta(ge=1)]
    index: Annotated[int, msgspec.Meta(ge=1)]


class AskMember(msgspec.Struct, frozen=True):
    group: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]


class MemberLog(msgspec.Struct, frozen=True):
    """How far a member's log goes. `lost_power`: the log may have lost its end, which was acknowledged
    without a sync, and the member takes no part since; `led`: it hears a leader, or is one. `agreed`: it
    takes part again, as the members that lost their power agreed on it, and has heard no leader since, or it
    abstains, and has heard none for long; older versions do not send it. `needs_leader`: it takes no part before
    a leader has helped it, as it has forgotten its votes, or all that its log had; nor do older versions send that."""

    last_term: int
    last_index: int
    lost_power: bool
    led: bool
    agreed: bool = False
    needs_leader: bool = False


SHOW_START = Method(120, "starts.show", StartShown, StartJudged, nodes_only=True)
METADATA_FORGOT = Method(121, "starts.metadata_forgot", MemberForgot, Remembered, (CannotTell,), nodes_only=True)
MEMBER_FORGOT = Method(122, "starts.member_forgot", MemberForgot, Remembered, (CannotTell,), nodes_only=True)
MEMBER_LOG = Method(123, "starts.member_log", AskMember, MemberLog, (CannotTell,), nodes_only=True)
