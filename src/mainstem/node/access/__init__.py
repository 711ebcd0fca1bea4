"""Access to the ports of a node: how clients and visitors show who they are, and what of it is audited."""
