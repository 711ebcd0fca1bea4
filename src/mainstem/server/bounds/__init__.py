"""The bounds on what the connections of a node hold: memory of requests and responses, credit of readers, strangers."""
