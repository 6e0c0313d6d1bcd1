"""Fast arithmetic: packed recurrences, row-exact Adam, the softmax over a vocabulary, Hamming search.

Each has a plain PyTorch or NumPy form, which the tests compare it with; C++ in `compiled` is used where there is a
compiler.
"""
