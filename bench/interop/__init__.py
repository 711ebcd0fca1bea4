"""Other people's clients against Mainstem and against Apache Kafka: `make interop`, `python -m bench.interop`.

Each client runs in a virtual environment of its own, as released, through the same scenarios against a node of either
system; Kafka's own command line tools and kcat run as they are. Mainstem is held to what Kafka does with a client: a
row says whether both served it, and why one did not."""
