"""SASL, as Kafka speaks it, without I/O: tokens in, values out.

A connection has one `Authentication`, which knows what may come next: a handshake that names the mechanism, then its
tokens. Each mechanism is a state machine of its own (`plain.py`, `scram.py`, `bearer.py`) that answers a token with a
`Challenge`, with `Accepted`, or with a question to the caller, who looks at credentials and checks what takes long: a
password's hash, a signature. All failures are one error to the peer, `AuthenticationFailed`; its reason is for the log,
and never holds a token, a password or a key."""
