"""The field F_q: bulk kernels, Lagrange matrices, moments, Reed-Solomon codes and uniform randomness."""
