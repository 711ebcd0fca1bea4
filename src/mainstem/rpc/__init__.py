"""Node-to-node calls: framed TCP, typed messages, binary attachments that are never re-encoded.

`wire/frames` and `wire/call_state` do no I/O; `client` and `rpc_server` drive them on asyncio, `blocking` on a plain
socket for code that has no event loop (Spark's Python workers).
"""
