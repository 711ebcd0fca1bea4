"""The nouns of a consumer group: the group with its states, its members, and the memory that these hold."""
