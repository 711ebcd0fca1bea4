"""The files of the queue store as readers find and open them, and the history of each queue that they add up to."""
