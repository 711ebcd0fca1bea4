"""What counts and which topics there are, written to the object store as well, for whoever has no log."""
