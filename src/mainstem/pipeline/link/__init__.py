"""The conversation of a splitter with its node, and the lease under which it may."""
