"""Configs of what is no topic: which there are, and what is set of them."""
