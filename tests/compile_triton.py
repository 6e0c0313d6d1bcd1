"""Compiles every Triton kernel of a cell for a GPU of some capability, and prints the names of those that have code.

In a process of its own: Triton's interpreter replaces parts of Triton's language.

    python tests/compile_triton.py 90
"""

from __future__ import annotations

import sys

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from raysent.kernels.triton_sources import load_source

FLOATS = {"before", "after", "bias", "d_states", "carry"}
LOW = {"gates", "products", "product", "low", "carried", "reset_states", "d_reset_states"}
INTEGERS = {"rows", "hidden"}


def compiled(capability: int) -> list[str]:
    """Return the names of the kernels that compile to code, in the type of products that the GPU has."""
    source = load_source("cells")
    low = "fp16" if capability < 80 else "bf16"
    names = [
        name for name, kernel in vars(source).items() if "BLOCK" in getattr(kernel, "arg_names", ())
    ]
    found = []
    for name in names:
        kernel = getattr(source, name)
        if not FLOATS.intersection(kernel.arg_names):  # a helper, which is compiled with its caller
            continue
        types = {**dict.fromkeys(FLOATS, "*fp32"), **dict.fromkeys(LOW, f"*{low}")}
        signature = {argument: types.get(argument, "i32") for argument in kernel.arg_names}
        signature["BLOCK"] = "constexpr"
        block = {(kernel.arg_names.index("BLOCK"),): 256}
        made = compile(
            ASTSource(fn=kernel, signature=signature, constexprs=block),
            target=GPUTarget("cuda", capability, 32),
        )
        found += [name] if made.asm["cubin"] else []
    return found


if __name__ == "__main__":
    print(*compiled(int(sys.argv[1])))
