"""The node's end of the split: the calls of splitters, their lease, and the journal as they see it."""
