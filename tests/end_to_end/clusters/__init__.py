"""Clusters of real nodes: their roles, failures, disks and networks."""
