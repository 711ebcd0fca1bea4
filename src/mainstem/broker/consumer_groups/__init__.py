"""Consumer groups: Kafka's classic protocol, and the one in which the coordinator assigns (`modern`, KIP-848).

`machine` is the protocol without I/O, one instance per partition of `__consumer_offsets`. It is split by job:
`rebalancing` (JoinGroup, SyncGroup, heartbeats, leaving) and `offsets` (and their expiry); the nouns are in `members`.
`step` is one event on its way through it, `timers` are its deadlines. `partition` drives one machine with its log,
whose records `offsets_topic` forms; `served_partitions` are those of this node, and `coordinator` takes the requests.
"""
