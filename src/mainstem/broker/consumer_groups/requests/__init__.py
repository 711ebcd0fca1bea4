"""The requests of clients to the coordinator of a node, by what they are about: a method per API, or part of one."""
