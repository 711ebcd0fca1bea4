"""The memory that a broker has of topics, and the order in which it changes them."""
