"""The metadata quorum: the Raft group that replicates the metadata, its members and those that follow it."""
