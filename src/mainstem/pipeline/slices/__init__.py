"""The work of a task of the split: from the bytes of a slice of the journal to runs of batches in order."""
