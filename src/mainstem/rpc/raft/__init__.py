"""The exchange of Raft messages between nodes."""
