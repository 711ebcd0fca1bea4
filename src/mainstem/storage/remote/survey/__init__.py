"""The content of a whole object store, found without a node."""
