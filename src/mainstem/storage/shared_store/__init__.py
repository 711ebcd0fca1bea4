"""The queue store of a whole cluster in an object store, as tasks of splits, merges and compactions see it."""
