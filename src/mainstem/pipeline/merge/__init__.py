"""Merges and compactions of store files, as jobs beside the split."""
