"""Files of the queue store between nodes: copied whole or in part, kept where they are as good, and mended."""
