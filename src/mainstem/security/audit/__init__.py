"""Who did what, from where, and with what verdict: records of it, of a bounded number."""
