"""The background steps of the storage role: retention, pruning, scrubbing, the watch over disk 1."""
