"""The metadata as a state machine: commands in, topics and nodes out. No I/O."""
