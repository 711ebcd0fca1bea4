"""The cost of carrying Raft's messages between two processes: `python -m bench.rpc`.

Blocks of 1 MiB from one node to the other, and small messages at a steady rate, through the exchange (with and without
TLS), beside the same bytes through plain asyncio streams. The result is the CPU of both processes, in user and system:
on a loopback the system's copies are most of it. Rounds alternate, so that the ratios hold on a machine that others use
as well."""
