"""A broker changes the metadata through its own node: topics, access rules, quotas, credentials, tokens."""
