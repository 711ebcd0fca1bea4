"""Clusters of whole nodes whose replicas move: nodes join, are drained, die for long, and go for good."""
