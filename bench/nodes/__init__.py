"""Nodes as benches start them: members of a cluster, nodes that count, or time, or merge at a smaller scale."""
