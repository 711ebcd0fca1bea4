"""Kafka's wire protocol, without any I/O.

`schema` declares messages, `messages/` holds one declaration file per API, `codec` reads and writes them,
`headers` frames them, `records/` understands record batches, `error_codes` names Kafka's errors.
"""
