"""The remote files as readers open them, pieces of them kept on disk 2, and the history of each queue."""
