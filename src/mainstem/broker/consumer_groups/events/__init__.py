"""The events of a consumer group machine, by what they are about. Each begins as a `Step` and ends as a `Result`."""
