"""Looking at rounds from outside: what one would cost, and whether one was run properly."""
