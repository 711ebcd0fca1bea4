"""Costs of being open to strangers: handshakes, rules, quotas, attacks, crowds."""
