"""The parts of a broker that are about transactions."""

from __future__ import annotations

from dataclasses import dataclass

from mainstem.broker.transactions.transaction_coordinator import TransactionCoordinator
from mainstem.broker.transactions.verification import CoordinatorVerification


@dataclass(frozen=True, slots=True)
class BrokerTransactions:
    coordinator: TransactionCoordinator
    verification: CoordinatorVerification
    """Asks the coordinator of a transaction, which may be another node."""
