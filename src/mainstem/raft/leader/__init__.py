"""What a node does while it leads: its leadership, and how its log reaches each other member."""
