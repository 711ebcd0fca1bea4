"""Whole stores, read to the last byte and compared with what describes them, without a node."""
