"""The storage of other nodes, as a broker without its own holds it: the ports of the compute/storage seam, over calls
to the leaders of the write groups.

Nothing here outlives the process, and nothing needs to be recovered.
"""
