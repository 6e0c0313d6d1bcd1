"""Fast code: packed recurrences, row-exact Adam, the cross-entropy over a vocabulary, Hamming search, text.

Each has a reference in PyTorch, NumPy or Python, which the tests compare it with. The C++ implementations in `compiled`
are used if there is a compiler.
"""
