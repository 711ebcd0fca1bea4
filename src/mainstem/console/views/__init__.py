"""The views that the console shows of a node, and the port through which it asks for them.

These structs are the JSON of `/v1/…`: their field names are promised to scripts (`--json`), so fields are
added and never renamed. Offsets and indexes are exclusive ends where they are called `end`; sizes in bytes.
"""
