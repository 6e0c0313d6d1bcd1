"""Fast numerical code: packed recurrences, row-exact Adam, the cross-entropy over a vocabulary, Hamming search.

Each has a PyTorch or NumPy implementation, which the tests use as the reference. The C++ implementations in `compiled`
are used if there is a compiler.
"""
