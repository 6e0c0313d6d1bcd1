"""Compiles every Triton kernel for a GPU of some capability, and prints the names of those that have code.

In a process of its own: Triton's interpreter replaces parts of Triton's language.

    python tests/compile_triton.py 90
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from raysent.kernels.triton_sources import load_source

KERNELS = {
    "cells": (
        "after_forward after_backward gates_forward state_forward state_backward gates_backward"
    ),
    "rows": "catch_up step extend_drift",
}
TYPES = {
    **dict.fromkeys(("rows", "hidden", "capacity", "num_steps", "dim", "window"), "i32"),
    **dict.fromkeys(("first", "count", "offset"), "i32"),
    **dict.fromkeys(("before", "after", "bias", "d_states", "carry"), "*fp32"),
    **dict.fromkeys(("weight", "mean", "square", "gradient"), "*fp32"),
    **dict.fromkeys(("drift", "decay"), "*fp64"),
    **dict.fromkeys(("size", "size_of_eps", "rate", "correction", "eps", "tiny"), "fp32"),
    **dict.fromkeys(("beta1", "beta2", "log_beta1", "log_beta2"), "fp32"),
    "last": "*i64",
}
LOW = {"gates", "products", "product", "low", "carried", "reset_states", "d_reset_states"}


def compiled(capability: int) -> Iterator[str]:
    """Yield the names of the kernels that compile to code, in the type of products that the GPU has."""
    low = "fp16" if capability < 80 else "bf16"
    for source, names in KERNELS.items():
        types = {**TYPES, **dict.fromkeys(LOW, f"*{low}"), "BLOCK": "constexpr"}
        if source == "rows":
            types["rows"] = "*i64"
        for name in names.split():
            kernel = getattr(load_source(source), name)
            # What is not named is a stride.
            signature = {argument: types.get(argument, "i32") for argument in kernel.arg_names}
            block = {(kernel.arg_names.index("BLOCK"),): 512}
            made = compile(
                ASTSource(fn=kernel, signature=signature, constexprs=block),
                target=GPUTarget("cuda", capability, 32),
            )
            if made.asm["cubin"]:
                yield name


if __name__ == "__main__":
    print(*compiled(int(sys.argv[1])))
