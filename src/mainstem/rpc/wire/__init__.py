"""Frames, connections and methods: bytes between two nodes."""
