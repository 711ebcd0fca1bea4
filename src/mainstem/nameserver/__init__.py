"""The metadata role: the replicated state of the cluster, its durable log, and who may change it how."""
