"""What counts in the remote tier: a write group's log decides it, and each replica keeps it in a manifest."""
