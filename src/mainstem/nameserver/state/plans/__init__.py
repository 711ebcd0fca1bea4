"""Plans over the metadata: which node should have which replicas, and lead what. No I/O."""
