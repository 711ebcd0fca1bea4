"""`ports.BrokerCalls` of a node, and its end towards other nodes: the APIs by which coordinators settle
transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mainstem.broker.broker import BrokerTransactions
from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.handlers.add_partitions_to_txn import answer_of_coordinator
from mainstem.broker.handlers.describe_producers import producers_of_offsets
from mainstem.broker.handlers.write_txn_markers import offsets_ended
from mainstem.protocol import codec
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.messages.producer_transactions import AddPartitionsToTxnRequest
from mainstem.protocol.messages.transaction_administration import DescribeProducersRequest, WriteTxnMarkersRequest
from mainstem.rpc.errors import NotServed
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.broker_calls import ASK_BROKER, BrokerAnswer, BrokerQuestion
from mainstem.rpc.other_nodes import SingleCalls
from mainstem.rpc.wire.method import Reply

ASKED_FROM = 4
"""The first version of AddPartitionsToTxn that brokers send."""

ASK_SECONDS_MAX = 5.0
"""Longer than an append takes on a loaded node; who asks tries again."""

Answering = Callable[[BrokerQuestion], Awaitable[bytes]]


class NodeBrokerCalls:
    """`calls`: None where there are no other nodes."""

    def __init__(self, node_id: int, calls: SingleCalls | None) -> None:
        self._node_id = node_id
        self._calls = calls
        self._answer: Answering | None = None

    async def ask(self, node_id: int, api_key: int, version: int, body: bytes) -> bytes:
        question = BrokerQuestion(api_key, version, body)
        if node_id == self._node_id:
            if self._answer is None:
                raise NotServed("this node is no broker")
            return await self._answer(question)
        if self._calls is None:
            raise NotServed(f"there is no node {node_id}")
        reply = await self._calls.call(node_id, ASK_BROKER, question, timeout_seconds=ASK_SECONDS_MAX)
        return reply.message.body

    def serve(self, handlers: Handlers, transactions: BrokerTransactions, groups: ConsumerGroupCoordinator) -> None:
        """From now on answer, by the coordinators of this node."""

        async def answer(question: BrokerQuestion) -> bytes:
            api = API_MESSAGES.get(question.api_key)
            if api is None or not api.version_min <= question.version <= api.version_max:
                raise NotServed(f"API {question.api_key} of version {question.version} is not served between nodes")
            try:
                request = codec.read(api.request, question.version, question.body)
            except ProtocolError as error:
                raise NotServed(f"a request that makes no sense: {error}") from error
            if isinstance(request, AddPartitionsToTxnRequest) and question.version >= ASKED_FROM:
                return codec.write(await answer_of_coordinator(transactions, request), question.version)
            if isinstance(request, WriteTxnMarkersRequest):
                return codec.write(await offsets_ended(groups, request), question.version)
            if isinstance(request, DescribeProducersRequest):
                return codec.write(await producers_of_offsets(groups, request), question.version)
            raise NotServed(f"API {api.name} is not served between nodes")

        async def told(call: RpcCall[BrokerQuestion]) -> Reply[BrokerAnswer]:
            return Reply(BrokerAnswer(await answer(call.request)))

        self._answer = answer
        handlers.unary(ASK_BROKER, told)
