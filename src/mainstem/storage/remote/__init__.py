"""The remote tier: files of the queue store that count in an object store.

A write group's log decides which files count (`decided/remote_state.py`), the rows about them included, so that a
replica needs no store to apply it. Each node writes what is decided to a manifest of its own
(`decided/remote_rows.py`, `decided/remote_tier.py`).
"""
