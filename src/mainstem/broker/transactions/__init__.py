"""Transactions: their coordinator, one machine per partition of `__transaction_state`.

`transaction.py` is one transactional id, `transitions.py` how producers change it, `transaction_machine.py` all ids of
one partition; `completion.py` writes the markers of transactions whose end is decided, `transaction_coordinator.py`
answers the APIs. `verification.py` is how the leader of a queue asks whether a producer may write to it."""
