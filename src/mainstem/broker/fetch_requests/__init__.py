"""Requests of Fetch under way: rounds of reads, and what their answers have in common."""
