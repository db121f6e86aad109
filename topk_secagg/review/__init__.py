"""Reports about rounds: what one would cost, how far it is, and whether it was run properly."""
