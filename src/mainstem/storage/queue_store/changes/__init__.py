"""All that changes which files of the queue store count: splits, merges, compactions, retention."""
