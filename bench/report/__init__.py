"""Tables, plots and targets, made from a result file alone."""
