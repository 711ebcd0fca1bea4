"""The scenarios, once per library. These modules run in the libraries' own environments and import nothing else."""
