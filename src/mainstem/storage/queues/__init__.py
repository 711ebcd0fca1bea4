"""The ports that brokers use: appends, reads, and changes of queues."""
