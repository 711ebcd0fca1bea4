"""The storage role: the journal on disk 1, the queue store on disk 2, and the queues they hold."""
