"""Kernels as compiled libraries, where the wing that builds them is there; everything works without them too.

    library = load("gru")      # ctypes.CDLL; raises CompilerError if it cannot be built
    library = try_load("gru")  # None in that case, with one warning

What builds them is found by the entry points of the group `raysent.kernels`: a module with a table `BUILDERS`, name ->
function of a kernel's name that returns its library.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from raysent.errors import CompilerError
from raysent.registry import Registry, by_table

if TYPE_CHECKING:
    from torch import Tensor

BUILDERS: Registry[Callable[[str], ctypes.CDLL]] = Registry(
    "builder of kernels", read=by_table("BUILDERS"), plural="kernels"
)
_log = logging.getLogger("raysent")


def load(name: str) -> ctypes.CDLL:
    """Return the library of a kernel; it is built if necessary.

    Raises:
        CompilerError: If it cannot be built, or nothing that builds kernels is installed; the same at every call.
    """
    for build in BUILDERS.values():
        return build(name)
    raise CompilerError(
        f"compiled kernel '{name}': must be built from its sources; given none{BUILDERS.failures}"
    )


@lru_cache
def try_load(name: str) -> ctypes.CDLL | None:
    """Return the library of a kernel, or None, with one warning, if it cannot be built."""
    if not BUILDERS and not BUILDERS.broken:
        return None
    try:
        return load(name)
    except CompilerError as error:
        _log.warning("%s; slower code without it gives the same results", error)
        return None


def address(tensor: Tensor | None) -> ctypes.c_void_p:
    """Return the address of a tensor for a kernel, which reads contiguous rows.

    Raises:
        ValueError: If its rows are not.
    """
    if tensor is not None and not tensor.is_contiguous():
        raise ValueError("tensors of a kernel must be contiguous")
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


class Arguments(ctypes.Structure):
    """What all calls of a kernel share; the struct of the kernel's file has the same fields in the same order."""

    def set(self, **tensors: Tensor | None) -> None:
        """Set the addresses of tensors."""
        for name, tensor in tensors.items():
            setattr(self, name, address(tensor))
