"""How long one turn of the event loop takes where a node's storage has much of something: the largest per case."""
