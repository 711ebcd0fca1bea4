"""The files that count in the remote tier: a write group's log decides, and each replica keeps them in a manifest."""
