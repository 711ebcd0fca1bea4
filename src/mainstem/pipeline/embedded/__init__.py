"""The splitter that runs beside a node: started, restarted and ended by it."""
