"""Reads from disks and from object stores."""
