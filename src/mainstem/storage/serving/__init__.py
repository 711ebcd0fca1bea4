"""A storage node's answers to brokers without storage."""
