"""The metadata role: the replicated state of the cluster, its durable log, and the rules for changing it."""
