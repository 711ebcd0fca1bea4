"""The files that count and the topics that there are, written to the object store as well, for readers without a
log."""
