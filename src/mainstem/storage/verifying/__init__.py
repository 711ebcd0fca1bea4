"""Whole stores without a node: read and compared with what describes them; what of them can be made anew."""
