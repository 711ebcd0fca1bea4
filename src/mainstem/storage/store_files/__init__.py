"""Files of the queue store: what names and describes one, and the writers of runs, packed files and queue segments."""
