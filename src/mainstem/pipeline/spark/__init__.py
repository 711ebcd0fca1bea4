"""Spark itself: whether it can run here, its session, and how it starts faster."""
