"""The form that a file of the queue store takes in the remote tier."""
