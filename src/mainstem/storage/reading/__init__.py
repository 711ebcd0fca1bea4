"""Reads: write cache, else journal, else queue store."""
