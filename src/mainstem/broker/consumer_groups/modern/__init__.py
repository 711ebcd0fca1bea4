"""Consumer groups whose partitions the coordinator assigns (KIP-848): one heartbeat API, group and member epochs, and a
member at a time that gives up partitions before another gets them."""
