"""How fast do groups agree, and what do many of them cost? `python -m bench.groups`."""
