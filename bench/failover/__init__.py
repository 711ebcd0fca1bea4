"""How long is a partition without a leader when its leader dies? `python -m bench.failover`."""
