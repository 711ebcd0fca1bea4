"""Whole clusters whose queue store is one object store."""
