"""The split as a streaming query: what is split next, by which tasks, recorded by whom."""
