"""The Kafka port: sockets, frames and backpressure. The dispatcher gives frames their meaning."""
