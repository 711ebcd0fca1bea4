"""A cluster whose nodes are lost, or somebody else's: read from the object store alone, and written to a new disk 1."""
