"""Records who did what, from where, and with what verdict; the records have a bounded number."""
