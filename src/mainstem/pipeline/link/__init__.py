"""What a splitter says to its node, and the lease under which it may."""
