"""Binary codes: bits <-> bytes, and Hamming distances.

The layout is that of `numpy.packbits`: the first bit is the most significant one of the first byte, and the last byte
is padded with zeros. It is the `ubinary` precision of sentence-transformers, and FAISS and usearch read it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raysent.errors import DataError

UInt8 = npt.NDArray[np.uint8]

# Size of a block of the second argument that is compared with one code at a time: it stays in the processor's cache.
_BLOCK_BYTES = 1 << 20


def pack_bits(bits: npt.ArrayLike) -> UInt8:
    """Pack bits, 0 or 1 [rows, bits], into bytes, uint8 [rows, ceil(bits / 8)].

    Raises:
        DataError: If a value is neither 0 nor 1.
    """
    values = np.atleast_2d(np.asarray(bits))
    if not ((values == 0) | (values == 1)).all():
        raise DataError("codes: must be bits, 0 or 1; given other values; only a model with a code returns bits")
    return np.packbits(values.astype(np.uint8), axis=1)


def unpack_bits(codes: UInt8, *, num_bits: int) -> UInt8:
    """Unpack bytes [rows, ceil(num_bits / 8)] into bits, 0 or 1, uint8 [rows, num_bits].

    Raises:
        DataError: If the number of bytes does not match `num_bits`.
    """
    if codes.shape[1] != -(-num_bits // 8):
        raise DataError(f"codes: {num_bits} bits must be {-(-num_bits // 8)} bytes per row; given {codes.shape[1]}")
    return np.unpackbits(codes, axis=1, count=num_bits)


def hamming(first: UInt8, second: UInt8) -> npt.NDArray[np.int32]:
    """Return the Hamming distances of codes [rows, bytes] and codes [columns, bytes], int32 [rows, columns]."""
    out = np.empty((len(first), len(second)), dtype=np.int32)
    codes, rows = _as_words(first), _as_words(second)
    size = max(_BLOCK_BYTES // max(rows.shape[1] * 8, 1), 1)
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        for row, code in enumerate(codes):
            # For short rows, einsum is about twice as fast as sum.
            out[row, start : start + size] = np.einsum("ij->i", np.bitwise_count(block ^ code), dtype=np.int32)
    return out


def _as_words(codes: UInt8) -> npt.NDArray[np.uint64]:
    """Return codes as 64-bit words, padded with zeros [rows, words]."""
    if codes.shape[1] % 8 == 0 and codes.flags.c_contiguous:
        return codes.view(np.uint64)
    padded = np.zeros((len(codes), -(-codes.shape[1] // 8) * 8), dtype=np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded.view(np.uint64)
