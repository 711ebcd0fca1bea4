"""A node has every other one forget what a share group has read: the group is about to be deleted."""

from __future__ import annotations

import msgspec

from mainstem.rpc.wire.method import Method


class ForgetShareGroup(msgspec.Struct, frozen=True):
    group_id: str


class ShareGroupForgotten(msgspec.Struct, frozen=True):
    """`forgotten`: of all that the node serves, and that is committed; else the caller asks again."""

    forgotten: bool


FORGET_SHARE_GROUP = Method(143, "shares.forget", ForgetShareGroup, ShareGroupForgotten, nodes_only=True)
