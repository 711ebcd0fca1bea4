"""Clients of clusters of real nodes: who serves them, and who serves them next."""
