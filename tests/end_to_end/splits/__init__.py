"""The pipeline beside real nodes: splits, merges and compactions, and their ends."""
