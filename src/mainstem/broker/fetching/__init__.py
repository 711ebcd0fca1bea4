"""The memory that a broker has of its readers: which partitions they follow, which replica is near them, and whose
turn it is to read old messages."""
