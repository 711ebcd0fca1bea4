"""What a broker remembers of topics, and the order in which it changes them."""
