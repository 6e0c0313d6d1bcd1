"""Kernels in C++ and what builds them: `build`."""
