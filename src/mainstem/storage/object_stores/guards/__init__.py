"""Guards around an object store, each of which every request passes."""
