"""The files of a round: where they live, how they are written whole or not at all, and checked when
read."""
