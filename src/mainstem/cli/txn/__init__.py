"""`mainstem txn`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="txn",
    help="Look at transactions, and abort those that hang.",
    commands_by_name={
        "list": LazyCommand("mainstem.cli.txn.list", "List transactional ids, or transactions that hang."),
        "describe": LazyCommand("mainstem.cli.txn.describe", "Show the state of a transactional id."),
        "abort": LazyCommand("mainstem.cli.txn.abort", "Abort an open transaction, and fence its producer."),
    },
)
