"""Share groups in the simulation of whole nodes: their members, and what must hold of what these are given (Q)."""
