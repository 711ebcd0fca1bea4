"""How far the groups that this node coordinates are behind, and why."""
