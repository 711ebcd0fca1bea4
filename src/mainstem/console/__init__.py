"""HTTP on port 9080: a node's health, metrics and views."""
