"""The compute role: answers Kafka's APIs over the message store, the metadata and the consumer group coordinator.

`routes` lists the APIs, `handlers` holds one module for each, `dispatcher` runs them. The room keeps nothing
that cannot be rebuilt.
"""
