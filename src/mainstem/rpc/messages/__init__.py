"""The messages of nodes to each other: each message declared once."""
