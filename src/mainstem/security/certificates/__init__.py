"""A cluster's own certificates: its authorities, what they issue, and what a certificate says.

A cluster has two authorities. That of the nodes issues what nodes and splitters show to each other and what nodes show
to clients; that of the users issues what clients show to nodes. They are two because a node lets whoever has a
certificate of the nodes' authority call it as nodes and splitters do: a user's certificate must never be one of those.

The modules beside `errors` and `library` import `cryptography`, which the extra `security` installs; whoever imports
them calls `library.require_cryptography` first.
"""
