"""The files of the metadata: log, snapshots, vote, starts."""
