"""Consumer groups: Kafka's classic protocol.

`machine` is the protocol without I/O, one instance per partition of `__consumer_offsets`, split by job: `joining`,
`rebalance`, `assignment` (SyncGroup), `presence` (heartbeats, leaving), `offsets` (and their expiry); the nouns are
`group` (with its states) and `member`. `partition` drives one machine with its log; `coordinator` takes the requests.
"""
