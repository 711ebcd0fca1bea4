"""The Kafka port: sockets, frames and backpressure. What a frame means is the dispatcher's business."""
