"""HTTP on port 9080: health, metrics and what there is to see of a node."""
