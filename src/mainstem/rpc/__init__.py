"""Node-to-node calls: framed TCP, typed messages, binary attachments that are never re-encoded.

`frames` and `connection` do no I/O; `client` and `server` drive them on asyncio, `blocking` on a plain socket
for code that has no event loop (Spark's Python workers).
"""
