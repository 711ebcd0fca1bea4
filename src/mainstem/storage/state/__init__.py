"""The state that committed blocks make: queues, producers, decided splits; its checkpoints, and recovery from them."""
