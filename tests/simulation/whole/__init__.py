"""A cluster of whole nodes in one process: nameserver, storage and broker of each, and clients that speak Kafka's
protocol to their dispatchers."""
