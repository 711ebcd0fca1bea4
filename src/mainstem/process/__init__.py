"""The process of a node, whatever the node does in it: its event loop, its garbage, and its memory."""
