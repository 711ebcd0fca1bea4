"""The broker of a node: what answers Kafka clients, and what it asks of other nodes."""
