"""Fakes of rules, credentials, quotas and tokens."""
