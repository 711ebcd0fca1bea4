"""Damaged blocks: made whole from another replica's copy, or replaced where they are lost for good."""
