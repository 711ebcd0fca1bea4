"""A node as commands talk to it: its HTTP port and its Kafka port."""
