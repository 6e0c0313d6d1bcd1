"""Bits <-> bytes, and Hamming distances on bytes.

The layout is numpy's `packbits`: the first bit is the highest of the first byte, and what does not fill the last byte
is zero. It is the `ubinary` of sentence-transformers, and what FAISS and usearch read. 2048 bits are 256 bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raysent.errors import DataError

UInt8 = npt.NDArray[np.uint8]

# Of the second argument, compared with one code at once: the differences stay in the processor's cache.
_BLOCK_BYTES = 1 << 20


def pack_bits(bits: npt.ArrayLike) -> UInt8:
    """Return codes as bytes, uint8 [rows, ceil(bits / 8)], of bits that are 0 or 1 [rows, bits].

    Raises:
        DataError: If a value is neither.
    """
    values = np.atleast_2d(np.asarray(bits))
    if not ((values == 0) | (values == 1)).all():
        raise DataError("codes: must be bits, 0 or 1; given other numbers; only a model with a code gives bits")
    return np.packbits(values.astype(np.uint8), axis=1)


def unpack_bits(codes: UInt8, *, num_bits: int) -> UInt8:
    """Return bits, 0 or 1, uint8 [rows, num_bits], of bytes [rows, ceil(num_bits / 8)].

    Raises:
        DataError: If there are not as many bytes as the bits need.
    """
    if codes.shape[1] != -(-num_bits // 8):
        raise DataError(f"codes: {num_bits} bits must be {-(-num_bits // 8)} bytes a row; given {codes.shape[1]}")
    return np.unpackbits(codes, axis=1, count=num_bits)


def hamming(first: UInt8, second: UInt8) -> npt.NDArray[np.int32]:
    """Return the differing bits of every code of one [rows, bytes] and every one of the other [columns, bytes].

    Returns:
        int32 [rows, columns].
    """
    out = np.empty((len(first), len(second)), dtype=np.int32)
    codes, rows = _as_words(first), _as_words(second)
    size = max(_BLOCK_BYTES // max(rows.shape[1] * 8, 1), 1)
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        for row, code in enumerate(codes):
            # einsum adds small numbers along rows about twice as fast as sum
            out[row, start : start + size] = np.einsum("ij->i", np.bitwise_count(block ^ code), dtype=np.int32)
    return out


def _as_words(codes: UInt8) -> npt.NDArray[np.uint64]:
    """Return codes as 64-bit words, filled up with zeros [rows, words]."""
    if codes.shape[1] % 8 == 0 and codes.flags.c_contiguous:
        return codes.view(np.uint64)
    padded = np.zeros((len(codes), -(-codes.shape[1] // 8) * 8), dtype=np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded.view(np.uint64)
