"""Cosines of pairs in single precision, to the same last bit on every machine.

Pairs of equal sentences have cosines that differ from one only by rounding, and that rounding decides their ranks: on
STS12 it moves Spearman's correlation in the third digit. SentEval leaves it to the machine's linear algebra. Here sums
are taken in one fixed order, that of OpenBLAS on processors with 256-bit vectors (AVX2), whatever the machine.

Source: Conneau and Kiela, 2018, SentEval, senteval/sts.py; OpenBLAS, kernel/x86_64/sdot.c (the order of the sum).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

# Four registers of eight numbers, each summed for itself.
LANES = 32


def cosines(first: Float32, second: Float32) -> Float32:
    """Return the cosine of every row of `first` with the same row of `second`, both [rows, dim], as [rows].

    It is 0 where a vector has no length.
    """
    products = _dots(first, second)
    lengths = np.sqrt(_dots(first, first)) * np.sqrt(_dots(second, second))
    quotients: Float32 = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return quotients


def _dots(first: Float32, second: Float32) -> Float32:
    """Return the inner products of rows [rows]."""
    dim = first.shape[1]
    whole = dim - dim % LANES
    lanes = np.zeros((len(first), LANES), dtype=np.float32)
    for start in range(0, whole, LANES):
        block = slice(start, start + LANES)
        # In double precision the product is exact, so that one rounding follows, as in a fused multiply-add.
        exact = first[:, block].astype(np.float64) * second[:, block]
        lanes = (lanes + exact).astype(np.float32)
    registers = lanes.reshape(-1, 4, 2, 4)
    halves = registers[:, :, 0] + registers[:, :, 1]
    quarters = (halves[:, 0] + halves[:, 1]) + (halves[:, 2] + halves[:, 3])
    total = (quarters[:, 0] + quarters[:, 1]) + (quarters[:, 2] + quarters[:, 3])
    rest = np.zeros(len(first))
    for place in range(whole, dim):
        rest += first[:, place] * second[:, place]
    sums: Float32 = (rest + total).astype(np.float32)
    return sums
