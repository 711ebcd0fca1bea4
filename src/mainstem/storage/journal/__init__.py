"""The journal: the append-only file sequence on disk 1 that holds the blocks of all write groups."""
