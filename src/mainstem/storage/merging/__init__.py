"""The merge of some store files into others: what is worth it, and the work itself, without a node."""
