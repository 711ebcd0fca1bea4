"""Who is on the other end, and what they may do."""
