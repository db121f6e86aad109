"""The field F_q: kernels, Lagrange matrices, sketches, Reed-Solomon codes, uniform randomness.

The way in: `field` and `lagrange` are plain. `linear` and `sketches` say what is computed in bulk;
they call the kernels through `native`. `montgomery` explains the arithmetic of the kernels,
`kernels` and `recovery` are the kernels, `machine_code` compiles them, and `library` keeps and
loads the result.
"""
