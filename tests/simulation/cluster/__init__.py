"""A whole cluster of storage roles in one process, on one event loop and simulated time, under seeded faults."""
