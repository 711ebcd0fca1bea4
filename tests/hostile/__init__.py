"""Hostile clients against a real node over TCP, each with an honest client beside it that must go on being served.

Nothing here measures time: a test counts rounds of the honest client, answers, connections and bytes.
"""
