"""The windows of share groups that other nodes serve, and this node's end towards them.

An event and its answer travel as the broker has them, in msgpack."""

from __future__ import annotations

from typing import Any

import msgspec

from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.share_groups.records import WindowKey
from mainstem.broker.share_groups.served_states import ServedStates
from mainstem.broker.share_groups.window_events import WINDOW_EVENTS, LookFor, Read, WindowEvent
from mainstem.protocol.error_codes import ErrorCode
from mainstem.rpc.errors import NotServed, RpcError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.shares import WINDOW_EVENT, WindowQuestion, WindowTold
from mainstem.rpc.other_nodes import SingleCalls
from mainstem.rpc.wire.method import Reply

ASK_SECONDS_MAX = 5.0
"""Longer than an append takes on a loaded node."""

_pack = msgspec.msgpack.encode
_KINDS = {kind: number for number, kind in enumerate(WINDOW_EVENTS)}
_EVENTS = [msgspec.msgpack.Decoder(kind) for kind in WINDOW_EVENTS]
_ANSWERS = [msgspec.msgpack.Decoder(answer) for answer in WINDOW_EVENTS.values()]


class WindowCalls:
    """`broker.share_groups.window_events.OtherWindows`, over calls."""

    def __init__(self, calls: SingleCalls) -> None:
        self._calls = calls

    async def ask(self, node_id: int, index: int, key: WindowKey, event: WindowEvent) -> Any:
        kind = _KINDS[type(event)]
        question = WindowQuestion(index, *key, kind, _pack(event))
        try:
            told = (await self._calls.call(node_id, WINDOW_EVENT, question, timeout_seconds=ASK_SECONDS_MAX)).message
            if told.refusal:
                raise CoordinatorRefusal(ErrorCode(told.refusal))
            return _ANSWERS[kind].decode(told.answer)
        except NotServed as failure:
            if isinstance(event, LookFor):  # the node is of a version that notes nothing when it is asked
                return await self.ask(node_id, index, key, Read()) != [None]
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from failure
        except RpcError as failure:  # it is gone, or of a version that knows of no such call
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from failure
        except (msgspec.MsgspecError, ValueError) as failure:  # of a later version
            raise CoordinatorRefusal(ErrorCode.UNKNOWN_SERVER_ERROR) from failure


def serve_windows(handlers: Handlers, served: ServedStates) -> None:
    """Answer other nodes, of the windows that this one serves."""

    async def told(call: RpcCall[WindowQuestion]) -> Reply[WindowTold]:
        asked = call.request
        if not 0 <= asked.kind < len(_EVENTS):
            raise NotServed(f"events of windows of kind {asked.kind} are not served here: upgrade this node")
        try:
            event: WindowEvent = _EVENTS[asked.kind].decode(asked.event)
        except msgspec.MsgspecError as error:
            raise NotServed(f"an event of a window that makes no sense: {error}") from error
        key = WindowKey(asked.group_id, asked.topic_id, asked.partition)
        try:
            return Reply(WindowTold(_pack(await served.submit_here(asked.index, key, event))))
        except CoordinatorRefusal as refusal:
            return Reply(WindowTold(refusal=int(refusal.code)))

    handlers.unary(WINDOW_EVENT, told)
