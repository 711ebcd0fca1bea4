"""Several nodes of this machine, each a process of its own."""
