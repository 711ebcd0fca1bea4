"""What a file of the queue store becomes in the remote tier."""
