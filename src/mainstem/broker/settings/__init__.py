"""Settings that change while a node runs: its own, and those of groups."""
