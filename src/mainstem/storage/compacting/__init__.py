"""The compaction of merged files: what is worth it, and the work itself, without a node."""
