"""How much clients may ask for: Kafka's quotas, and the buckets that measure them."""
