"""The same cases against each fake and what it stands for: a fake that passes these may be believed."""
