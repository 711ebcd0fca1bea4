"""The internal topic `__consumer_offsets`: how it is made, and the form of the records in it."""
