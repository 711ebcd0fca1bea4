"""Files of certificates, read for all that listen with TLS: names and dates of certificates, lists of those that are
revoked, and whether a file has changed."""
