"""Errors that end the demo, besides a node that fails (`node_process`) and data that cannot be had (`data`)."""


class DemoFailed(Exception):
    """Something did not happen, or not in time; the message says what."""
