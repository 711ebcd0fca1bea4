"""TLS between the sockets of a listener and its connections."""
