"""Streams groups (KIP-1071): the coordinator makes tasks of an application's topology, and assigns them to its members.

`topology` says which tasks there are, and which topics they need; `task_assignor` who runs them; `task_reconciliation`
how a member gets from one assignment to the next. `streams_group` is the noun, `streams_step` changes it by records,
`streams_heartbeat` answers members, `streams_described` administrators.
"""
