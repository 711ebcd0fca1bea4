"""Members of the classic protocol in groups whose partitions the coordinator assigns, and the way of a group from one
protocol to the other while its members go on."""
