"""Tenants: whose a name is, and what its owner may have."""
