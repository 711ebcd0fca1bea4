"""Replicated machines: each is replayed from a log, one partition of an internal topic, and moves with the partition.

`result.py` has what goes into a machine and comes out of it, `machine_log.py` the log, `runtime.py` the driver: loads,
appends, snapshots, and what is done about damage. A `machine_partition.py` is the two of one partition;
`served_topic.py` has all that a node serves. The decisions of a machine are no business of this room."""
