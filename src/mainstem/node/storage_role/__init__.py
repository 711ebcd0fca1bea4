"""The storage of a node: its own disks or that of other nodes, what is served of it, and the splitter beside it."""
