"""The phases of the paper as functions over arrays. Nothing here opens a file."""
