"""The field F_q: bulk kernels, Lagrange matrices, syndromes and uniform randomness."""
