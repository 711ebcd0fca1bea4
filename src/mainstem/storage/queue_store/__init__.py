"""The queue store on disk 2: runs, their indexes, and the manifest that says which of them count."""
