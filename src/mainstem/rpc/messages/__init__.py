"""What nodes say to each other: each message declared once."""
