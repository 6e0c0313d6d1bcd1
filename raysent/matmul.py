"""How exactly this process multiplies float32 matrices on its CPU; set once at the start and kept in the run's record.

With precision "medium" torch hands float32 products to oneDNN, which is about twice as fast as its default library on
AMD. Where the CPU has matrix tiles (AMX) that mode multiplies in bfloat16, and where there is a GPU it rounds the
GPU's float32 products, so it is left off there.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

# Multiplications up to which a product is faster in torch's default library than in oneDNN.
_SMALL = 2**21
_CPU_DESCRIPTION = Path("/proc/cpuinfo")


def set_matmul_precision() -> str:
    """Choose the fastest products of full float32 accuracy.

    Returns:
        The word that was set, for the record: `medium` (oneDNN, float32 accuracy) or `highest`.
    """
    word = "medium" if _is_exact_with_onednn() and not torch.cuda.is_available() else "highest"
    torch.set_float32_matmul_precision(word)
    return word


def product(left: Tensor, right: Tensor, *, out: Tensor) -> None:
    """Multiply two matrices; a small product in float32 does without oneDNN, of which each call takes some 15 us.

    Args:
        left: [rows, inner].
        right: [inner, columns].
        out: Where the product goes [rows, columns].
    """
    is_small = left.dtype == torch.float32 and left.numel() * right.shape[1] < _SMALL
    if not is_small or torch.get_float32_matmul_precision() != "medium":
        torch.mm(left, right, out=out)
        return
    torch.set_float32_matmul_precision("highest")
    try:
        torch.mm(left, right, out=out)
    finally:
        torch.set_float32_matmul_precision("medium")


def _is_exact_with_onednn() -> bool:
    """Return whether the CPU is known to have AVX-512 and no matrix tiles; False where it cannot be known."""
    try:
        flags = next(line for line in _CPU_DESCRIPTION.read_text().splitlines() if line.startswith("flags")).split()
    except (OSError, StopIteration):
        return False
    return "avx512_bf16" in flags and not any(flag.startswith("amx") for flag in flags)
