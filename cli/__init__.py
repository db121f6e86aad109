"""The command line: one file per command, and `console`, the only place that prints."""
