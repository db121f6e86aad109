"""The command line: one function for each command, and `console`, the only place that prints."""
