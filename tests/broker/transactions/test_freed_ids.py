"""A transaction coordinator that stops to serve very many ids frees them some at a time."""

from __future__ import annotations

import asyncio

from tests.broker.transactions.test_next_transaction import ID, Cluster, simulated

from mainstem.broker.machines.letting_go import LET_GO_AT_ONCE
from mainstem.broker.transactions.transaction import TransactionRecord

IDS = 3 * LET_GO_AT_ONCE + 10


def test_transactional_ids_go_in_pieces() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.begun()
        [partition] = cluster.served.partitions.values()
        machine = partition.machine
        assert machine is not None
        for number in range(IDS):
            machine.replay(TransactionRecord(f"id-{number}", machine.transactions[ID]))
        partition.runtime.resign()
        assert partition.machine is None
        left, turns = len(machine.transactions), 0
        assert left == IDS + 1, "nothing goes in the turn in which others wait for a word"
        while machine.transactions:
            assert turns < IDS, "nobody frees them"
            await asyncio.sleep(0)
            assert left - len(machine.transactions) <= LET_GO_AT_ONCE
            left, turns = len(machine.transactions), turns + 1
        assert turns > IDS // LET_GO_AT_ONCE

    simulated(story)
