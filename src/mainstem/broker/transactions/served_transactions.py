"""The partitions of `__transaction_state` that this node serves, each with the completion of its transactions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from mainstem.broker.machines.served_topic import ServedTopic
from mainstem.broker.machines.serving_node import ServingNode
from mainstem.broker.transactions.completion import Completion, MarkerWriting
from mainstem.broker.transactions.config import TransactionsConfig
from mainstem.broker.transactions.state_topic import StateTopicCodec, limits_of, state_topic
from mainstem.broker.transactions.transaction import TransactionState
from mainstem.broker.transactions.transaction_machine import TransactionCounts
from mainstem.broker.transactions.transaction_partition import TransactionPartition
from mainstem.model import HistogramSample, Sample, Topic


class ServedTransactions(ServedTopic[TransactionPartition]):
    """`start` before use, `close` after. Partitions go by their number in the internal topic."""

    def __init__(self, node: ServingNode, config: TransactionsConfig, markers: MarkerWriting) -> None:
        super().__init__(node, state_topic(config))
        self._config = config
        self._markers = markers
        self._counts = TransactionCounts()
        self._completions: dict[int, asyncio.Task[None]] = {}

    def samples(self) -> Iterable[Sample | HistogramSample]:
        """May run in another thread: it copies what it walks over first."""
        states: Counter[TransactionState] = Counter()
        bytes_held = loading = incomplete = 0
        for partition in list(self._partitions.values()):
            machine = partition.machine
            if machine is None:
                loading += 1
                continue
            incomplete += machine.incomplete
            bytes_held += machine.bytes_held
            states.update(transaction.state for transaction in list(machine.transactions.values()))
        for state in TransactionState:
            if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
                labels = (("state", state.title),)
                yield Sample("mainstem_transactions", "gauge", "Transactional ids by state.", states[state], labels)
        yield Sample("mainstem_transactions_bytes", "gauge", "Held by transactional ids, about.", bytes_held)
        yield Sample(
            "mainstem_transaction_partitions_not_served", "gauge", "Partitions without transactions loaded.", loading
        )
        yield Sample(
            "mainstem_transaction_partitions_incomplete",
            "gauge",
            "Partitions served without a part of their log.",
            incomplete,
        )
        counts = self._counts
        for name, help_text, count in (
            ("mainstem_transactions_committed_total", "Transactions committed, with all markers.", counts.committed),
            ("mainstem_transactions_aborted_total", "Transactions aborted, with all markers.", counts.aborted),
            ("mainstem_transactions_timed_out_total", "Transactions whose time was over.", counts.timed_out),
            ("mainstem_transaction_producers_fenced_total", "Requests of fenced producers.", counts.fenced),
            ("mainstem_transactional_ids_expired_total", "Ids that nobody used for long.", counts.ids_expired),
            ("mainstem_transactions_refused_total", "Requests refused for want of room.", counts.refused_for_room),
            (
                "mainstem_transaction_log_failures_total",
                "Times a partition had to be loaded again.",
                counts.log_failures,
            ),
        ):
            yield Sample(name, "counter", help_text, count)

    def _partition(self, topic: Topic, index: int) -> TransactionPartition:
        return TransactionPartition(
            self._log(topic, index, StateTopicCodec(), limits_of(self._config)),
            self._config,
            self._clock,
            self._place(topic, index),
            counts=self._counts,
        )

    def _lead(self, index: int) -> None:
        super()._lead(index)
        partition = self._partitions[index]
        completion = Completion(partition, self._markers)
        self._completions[index] = self._supervision.start(
            completion.run, f"transaction coordinator: markers of {partition.name}"
        )

    def _resign(self, index: int) -> None:
        super()._resign(index)
        self._end(self._completions.pop(index))
