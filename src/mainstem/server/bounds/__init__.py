"""What the connections of a node may hold: memory of requests and responses, credit of readers, strangers."""
