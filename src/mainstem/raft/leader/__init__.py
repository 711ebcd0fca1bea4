"""The work of a node while it leads: its leadership, and how its log reaches each other member."""
