"""Clients push to this node what they measure of themselves (KIP-714)."""
