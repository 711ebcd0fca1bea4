"""The topic that is written to."""

TOPIC = "failover"
PARTITIONS = 32
"""Enough that every write group has one."""
