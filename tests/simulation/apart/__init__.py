"""Brokers without storage in front of whole nodes that serve no clients."""
