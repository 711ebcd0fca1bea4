"""Clusters with a remote tier."""
