"""Takes a consumer group from one generation to the next: joins, the rebalance, assignments, and who is present."""
