"""Consumer groups whose members change their protocol, in the simulation of whole nodes (H)."""
