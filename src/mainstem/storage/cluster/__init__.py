"""Write groups of several nodes: replication, snapshots, replicas that come, go and return."""
