"""Transactions in the simulation of whole nodes: producers, their zombies, readers, and what must hold of them (E)."""
