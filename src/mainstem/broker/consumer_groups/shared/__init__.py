"""The members of share groups (KIP-932): a heartbeat API like that of groups whose partitions the coordinator assigns,
but nobody owns a partition alone, so that a member has its target at once."""
