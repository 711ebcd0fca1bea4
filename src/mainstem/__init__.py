"""Mainstem: a distributed message queue that Kafka clients use unchanged."""

__version__ = "0.1.0"
