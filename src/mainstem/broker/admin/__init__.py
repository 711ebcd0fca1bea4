"""Shared by the handlers that change topics and configs."""
