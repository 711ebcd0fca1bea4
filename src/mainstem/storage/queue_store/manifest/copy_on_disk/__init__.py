"""The manifest's copy on disk 2: written, looked through for rot, and read where the manifest is lost."""
