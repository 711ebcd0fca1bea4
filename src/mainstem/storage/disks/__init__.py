"""Files of a real disk: careful reads, the thread of the group commit, the cache of what was read."""
