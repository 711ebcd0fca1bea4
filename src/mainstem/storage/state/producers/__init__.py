"""Idempotent producers: in memory as far as they fit, in files on disk 1 otherwise; bounded, expired, mended."""
