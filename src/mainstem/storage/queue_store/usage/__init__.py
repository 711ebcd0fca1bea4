"""Counts what lies on which level of the queue store, and how much of it each topic has."""
