"""Files of a real disk: careful reads, the threads that work on it."""
