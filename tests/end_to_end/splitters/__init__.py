"""Splitters in tests: with Spark and without."""
