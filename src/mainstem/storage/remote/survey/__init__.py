"""What a whole object store holds, found without a node."""
