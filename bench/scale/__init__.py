"""Costs of one thing as its number grows: queues, producers, write groups, readers behind brokers."""
