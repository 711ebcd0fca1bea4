"""Write groups: their logs of blocks, the drivers of their consensus, and the turn that writes all of them."""
