"""One function per command: read files, run a phase, write files. They print nothing."""
