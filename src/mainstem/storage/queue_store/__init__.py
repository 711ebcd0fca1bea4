"""The queue store on disk 2: files, their indexes, and the manifest that says which of them count."""
