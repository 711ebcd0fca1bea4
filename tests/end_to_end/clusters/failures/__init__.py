"""Clusters of real nodes of which some die, or lose their disks, power or network."""
