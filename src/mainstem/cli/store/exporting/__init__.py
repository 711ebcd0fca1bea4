"""A topic as a directory that tools of Kafka read: the copy of its queues, and the command that makes it."""
