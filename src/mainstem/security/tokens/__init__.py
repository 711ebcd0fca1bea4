"""Delegation tokens (KIP-48): what lets somebody in as their owner, for a while, without the owner's password."""
