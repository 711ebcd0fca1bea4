"""On the path of local Python workers only, see `sitecustomize`."""
