"""Rows of (queue, offset): how runs and the indexes of sealed segments say where batches lie."""
