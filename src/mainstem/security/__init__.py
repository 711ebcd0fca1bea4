"""Learns who is on the other end, and decides what they may do."""
