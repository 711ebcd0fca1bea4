"""The cache of what was read from files: chunks in memory, on their way there, and ahead of their readers."""
