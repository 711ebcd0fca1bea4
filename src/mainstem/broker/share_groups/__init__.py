"""How far share groups (KIP-932) are with partitions: records are acquired one by one, by any member, and are given to
another where they are not acknowledged.

`share_partition` is the window of one group over one partition, `state_machine` the windows of one partition of
`__share_group_state` without I/O, `records` the form of its records. `served_states` are the partitions of that
topic which this node serves: those that lie in the write group of the partition that is read. So the leader of a
partition has the state of all groups that read it. `sessions` are the partitions that members follow.
"""
