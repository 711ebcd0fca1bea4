"""The files that count, as the manifest holds them in memory: rows in pages, found by name or by block."""
