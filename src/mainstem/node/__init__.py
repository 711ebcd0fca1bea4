"""A node as a whole: its configuration, and the roles that it is wired from."""
