"""What a task of the split does: from the bytes of a slice of the journal to runs of batches in order."""
