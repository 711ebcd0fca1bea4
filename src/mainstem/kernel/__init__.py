"""The hot path, from bytes to bytes: the scan of produced batches and the block they are copied to.

Each module is the pure-Python twin of a compiled one with the same functions; `KERNEL` says which is active.
"""

from __future__ import annotations

KERNEL = "python"
