"""Nodes and jobs that are made to misbehave, or are of another version."""
