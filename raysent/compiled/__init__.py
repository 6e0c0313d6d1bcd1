"""Kernels in C++, built when they are first asked for with the machine's own compiler; all works without them too.

`<name>.cpp` of this folder exports plain C functions over pointers and sizes. It includes no header of Python, torch or
NumPy, so that it builds in about a second, from nothing but a compiler, and serves every version of them.

    library = load("gru")              # ctypes.CDLL; raises CompilerError where there is no compiler
    library = load_if_possible("gru")  # None there, said once

What several kernels need stands in `numbers.h`.

A library is kept in the cache under a key of its source, the headers, the compiler and the processor, so that a changed
file, another compiler or a home folder shared by several machines never meets an old one.
"""

from raysent.compiled.build import load, load_if_possible

__all__ = ["load", "load_if_possible"]
