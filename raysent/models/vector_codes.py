"""Codes of vectors from any source. In: vectors [rows, dim], for instance of a file. Out: a code, and bits.

`rotate` makes a code without training: a random rotation of the centred vectors, whose variance is evened out in part.
A saved code is a folder of `code.json` and `code.safetensors`; folders that earlier versions wrote may hold any method
of `codes/`.

Source: Gao and Long, 2024 (RaBitQ: a rotation of centred vectors); `benchmarks/results/codes.md` compares the methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pydantic
import torch
from torch import Tensor

from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.models.codes import AnyCode, Code, CodeConfig, UInt8, build_code, pack_bits
from raysent.models.codes.random_projection import Config as RandomProjection
from raysent.models.objectives.reconstruction import similarity_kept
from raysent.storage import (
    file_sha256,
    load_tensors,
    read_json,
    save_tensors,
    storage_errors,
    whole_file,
    write_json,
)
from raysent.storage.layout import CODE_FILE

TENSORS_FILE = "code.safetensors"
KIND = "raysent code"
_AGAIN = "make it again with 'raysent binarize --keep'"

# The variance of each direction is divided by its fourth root: the best recall of `benchmarks/results/codes.md`.
WHITEN = 0.25
# Rows that the rotation is fitted to, and rows that are held out to measure what it keeps.
NUM_FITTED = 50_000
_NUM_HELD_OUT = 2_000
_MIN_ROWS = 100
# Rows encoded at once.
CHUNK = 8192


@dataclass(frozen=True)
class VectorCode:
    """A fitted code.

    Attributes:
        config: Settings of the method.
        dim: Size of the vectors that it encodes.
        code: The method.
    """

    config: CodeConfig
    dim: int
    code: Code

    @property
    def num_bits(self) -> int:
        """Bits of a vector."""
        return self.config.num_bits(self.dim)

    def encode_packed(self, vectors: np.ndarray) -> UInt8:
        """Return codes, uint8 [rows, ceil(bits / 8)], of vectors [rows, dim]; see `codes.pack_bits`.

        Raises:
            DataError: If the vectors have another size, or are not finite.
        """
        _check(vectors, dim=self.dim)
        packed = np.empty((len(vectors), -(-self.num_bits // 8)), dtype=np.uint8)
        with torch.inference_mode():
            for start in range(0, len(vectors), CHUNK):
                bits = self.code(_tensor(vectors[start : start + CHUNK]))
                packed[start : start + CHUNK] = pack_bits(bits.numpy())
        return packed

    def save(self, folder: Path) -> None:
        """Write the code's files.

        Raises:
            ArtifactError: If the folder cannot be written.
        """
        tensors = {name: parameter.detach() for name, parameter in self.code.named_parameters()}
        save_tensors(folder / TENSORS_FILE, tensors)
        about = {
            "kind": KIND,
            "dim": self.dim,
            "config": {"code": self.config.model_dump(mode="json")},
            "sha256": file_sha256(folder / TENSORS_FILE),
        }
        write_json(folder / CODE_FILE, about)


def load_code(folder: Path) -> VectorCode:
    """Return a saved code.

    Raises:
        ArtifactError: If a file is missing, truncated, changed or of another kind.
    """
    about = read_json(folder / CODE_FILE)
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise ArtifactError(
            f"{folder / CODE_FILE}: not a code of this version of raysent; {_AGAIN}"
        )
    tensors = load_tensors(folder / TENSORS_FILE)
    # Codes of earlier versions have no digest.
    if about.get("sha256") not in (None, file_sha256(folder / TENSORS_FILE)):
        raise ArtifactError(
            f"{folder / TENSORS_FILE}: changed since the code was saved; restore it or {_AGAIN}"
        )
    try:
        config = pydantic.TypeAdapter[CodeConfig](AnyCode).validate_python(about["config"]["code"])
        dim = int(about["dim"])
        code = build_code(config, dim=dim, generator=torch.Generator())
        code.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ArtifactError(
            f"{folder}: changed or of another version ({reason}); {_AGAIN}"
        ) from None
    return VectorCode(config, dim, code.eval())


def rotate(
    vectors: np.ndarray, *, bits: int | None = None, seed: int = 0
) -> tuple[VectorCode, float]:
    """Fit a rotation to vectors.

    A twentieth of the rows, at most 2,000, is held out to measure what the code keeps.

    Args:
        vectors: float [rows, dim]; may be memory-mapped.
        bits: Bits of a code; by default one for each number of a vector, at most 2,048.
        seed: Seed of the rotation, and of the rows that are held out.

    Returns:
        The code, and the correlation of the held-out rows' cosines with minus the distances of their codes.

    Raises:
        ConfigError: If there are to be fewer bits than one.
        DataError: If there are too few vectors, or one is not finite.
    """
    _check(vectors)
    if len(vectors) < _MIN_ROWS:
        raise DataError(
            f"vectors: must have at least {_MIN_ROWS} rows to fit and measure a code; given {len(vectors)}"
        )
    if bits is not None and bits < 1:
        raise ConfigError(f"bits: must be at least 1; given {bits}")
    config = RandomProjection(bits=bits, distribution="rotation", whiten=WHITEN)
    dim = vectors.shape[1]
    generator = torch.Generator().manual_seed(seed)
    code = build_code(config, dim=dim, generator=generator)
    order = np.random.default_rng(seed).permutation(len(vectors))
    num_held_out = min(_NUM_HELD_OUT, len(order) // 20)
    train_rows = np.sort(order[num_held_out:][:NUM_FITTED])
    code.fit(_tensor(vectors[train_rows]))
    code.eval()
    held_out = _tensor(vectors[np.sort(order[:num_held_out])])
    with torch.inference_mode():
        correlation = similarity_kept(held_out, code(held_out))
    return VectorCode(config, dim, code), correlation


def _tensor(vectors: np.ndarray) -> Tensor:
    # A copy, because a tensor must not write to a memory-mapped file.
    return torch.from_numpy(np.array(vectors, dtype=np.float32))


def _check(vectors: np.ndarray, *, dim: int | None = None) -> None:
    if vectors.ndim != 2 or 0 in vectors.shape or vectors.dtype.kind != "f":
        raise DataError(
            f"vectors: must be numbers [rows, dim], neither size 0; given {vectors.dtype} {list(vectors.shape)}"
        )
    if dim is not None and vectors.shape[1] != dim:
        raise DataError(
            f"vectors: must have {dim} numbers a row, as the code does; given {vectors.shape[1]}"
        )
    for start in range(0, len(vectors), CHUNK):
        if not np.isfinite(vectors[start : start + CHUNK]).all():
            raise DataError(
                f"vectors: must be finite; given NaN or infinity between rows {start} and {start + CHUNK}"
            )


_VECTOR_SUFFIXES = (".npy", ".npz", ".parquet")


def check_vector_file(path: Path) -> None:
    """Check that a file to write ends in ``.npy``, ``.npz`` or ``.parquet``; without an end it is a ``.npy`` file.

    Raises:
        ConfigError: If it ends otherwise.
    """
    if path.suffix and path.suffix.lower() not in _VECTOR_SUFFIXES:
        raise ConfigError(f"{path}: must end in {', '.join(_VECTOR_SUFFIXES)}; given {path.suffix}")


def write_vectors(path: Path, vectors: np.ndarray, texts: Sequence[str]) -> None:
    """Write vectors in the form that the file's name ends in.

    Args:
        path: ``.npz``: the array ``vectors``. ``.parquet``: the columns ``text``, and ``vector``, a list of fixed size.
            Any other: the array as a ``.npy`` file.
        vectors: [rows, dim].
        texts: The text of each vector [rows].

    Raises:
        ArtifactError: If the file cannot be written.
    """
    with storage_errors(path), whole_file(path) as temporary, temporary.open("wb") as stream:
        if path.suffix.lower() == ".npz":
            np.savez(stream, vectors=vectors)
        elif path.suffix.lower() == ".parquet":
            import pyarrow as pa  # noqa: PLC0415 - only this form needs it
            from pyarrow import parquet  # noqa: PLC0415

            vector_column = pa.FixedSizeListArray.from_arrays(
                pa.array(vectors.reshape(-1)), vectors.shape[1]
            )
            text_column = pa.array(texts, pa.string())
            parquet.write_table(pa.table({"text": text_column, "vector": vector_column}), stream)
        else:
            np.save(stream, vectors)


def read_vectors(path: Path) -> np.ndarray:
    """Return the vectors of a `.npy` file, memory-mapped, or `vectors` of an `.npz` [rows, dim].

    Raises:
        DataError: If it is missing or not such a file.
    """
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        # An .npz is a collection of arrays.
        vectors: np.ndarray = loaded if isinstance(loaded, np.ndarray) else loaded["vectors"]
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; 'raysent encode' writes one, and so does numpy.save"
        ) from None
    except (BadZipFile, EOFError, KeyError, OSError, ValueError) as error:
        raise DataError(
            f"{path}: must be a .npy file of numbers ({error}); write it again"
        ) from None
    return vectors
