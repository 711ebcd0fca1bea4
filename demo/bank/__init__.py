"""The bank of `make demo-transactions`: orders, the tellers that book them, and the audit of what they booked."""
