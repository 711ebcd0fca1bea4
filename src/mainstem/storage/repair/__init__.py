"""Repair of damage on both disks, from other replicas."""
