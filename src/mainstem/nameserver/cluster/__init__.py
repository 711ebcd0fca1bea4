"""Nodes of the cluster as the metadata leader sees them: heartbeats, who lives, who leads, who may start."""
