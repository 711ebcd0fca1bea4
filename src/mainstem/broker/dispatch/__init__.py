"""From request frames to response frames, one by one or in bursts: routes, failures, durations."""
