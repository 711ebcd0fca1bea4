"""The long-term store: splitting, merging, compaction, export, reads from disks and from object stores."""
