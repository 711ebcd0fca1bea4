"""What several handlers share to change topics and configs."""
