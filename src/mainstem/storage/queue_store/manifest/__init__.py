"""The manifest: which files of the queue store count, for which blocks, and how far each write group is split."""
