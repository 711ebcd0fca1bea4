"""Uploads of merged files to the remote tier, as jobs beside the split."""
