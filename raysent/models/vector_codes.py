"""Codes of vectors from any source. In: vectors [rows, dim], for instance of a file. Out: a code, and bits.

The methods are those of `codes/`, trained with the objective `reconstruction` on vectors instead of sentences. A saved
code is a folder of `code.json` and `code.safetensors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pydantic
import torch
from torch import Tensor

from raysent.config import StrictModel
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.models.codes import AnyCode, Code, UInt8, build_code, pack_bits
from raysent.models.objectives import BuildContext, Objective, build_objective
from raysent.models.objectives.reconstruction import Config as Reconstruction
from raysent.parallel import Progress
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

# Rows that a method without steps is fitted to, and rows that are held out to evaluate a code.
NUM_FITTED = 50_000
NUM_HELD_OUT = 2_000
MIN_ROWS = 100
# Rows encoded at once.
CHUNK = 8192


class VectorCodeConfig(StrictModel):
    """Settings of a code of vectors.

    Attributes:
        code: The method.
        objective: The loss that trains code and decoder.
        batch_size: Vectors of a step.
        learning_rate: Learning rate of Adam at the first step; it falls to zero in even steps.
        epochs: Passes over the vectors.
        seed: Seed of initial values, of the order of vectors and of stochastic thresholds.
    """

    code: AnyCode
    objective: Reconstruction = Reconstruction()
    batch_size: int = pydantic.Field(default=64, ge=2)
    learning_rate: float = pydantic.Field(default=1e-3, gt=0)
    epochs: int = pydantic.Field(default=1, ge=1)
    seed: int = pydantic.Field(default=0, ge=0)


@dataclass(frozen=True)
class VectorCode:
    """A fitted or trained code.

    Attributes:
        config: Its settings.
        dim: Size of the vectors that it encodes.
        code: The method.
    """

    config: VectorCodeConfig
    dim: int
    code: Code

    @property
    def num_bits(self) -> int:
        """Bits of a vector."""
        return self.config.code.num_bits(self.dim)

    def encode_packed(self, vectors: np.ndarray) -> UInt8:
        """Return codes, uint8 [rows, ceil(bits / 8)], of vectors [rows, dim]; see `codes.pack_bits`.

        Raises:
            DataError: If the vectors have another size, or are not finite.
        """
        _check(vectors, dim=self.dim)
        packed = np.empty((len(vectors), -(-self.num_bits // 8)), dtype=np.uint8)
        with torch.inference_mode():
            for start in range(0, len(vectors), CHUNK):
                packed[start : start + CHUNK] = pack_bits(
                    self.code(_tensor(vectors[start : start + CHUNK])).numpy()
                )
        return packed

    def save(self, folder: Path) -> None:
        """Write the code's files.

        Raises:
            ArtifactError: If the folder cannot be written.
        """
        save_tensors(
            folder / TENSORS_FILE,
            {name: value.detach() for name, value in self.code.named_parameters()},
        )
        about = {"kind": KIND, "dim": self.dim, "config": self.config.model_dump(mode="json")}
        write_json(folder / CODE_FILE, {**about, "sha256": file_sha256(folder / TENSORS_FILE)})


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
        config, dim = VectorCodeConfig.model_validate(about["config"]), int(about["dim"])
        code = build_code(config.code, dim=dim, generator=torch.Generator())
        code.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ArtifactError(
            f"{folder}: changed or of another version ({reason}); {_AGAIN}"
        ) from None
    return VectorCode(config, dim, code.eval())


def make_code(
    vectors: np.ndarray,
    config: VectorCodeConfig,
    *,
    related: np.ndarray | None = None,
    progress: Progress | None = None,
) -> tuple[VectorCode, dict[str, float]]:
    """Make a code for vectors.

    A twentieth of the vectors, or of the related pairs, at most `NUM_HELD_OUT`, is held out to evaluate the code.

    Args:
        vectors: float [rows, dim]; may be memory-mapped.
        config: Settings of the code.
        related: Rows of vectors that belong together, such as those of paraphrases, int64 [pairs, 2]; the steps read
            these pairs. Without them the semantic term compares random rows.
        progress: Called with the name of the work, the steps done, and their number.

    Returns:
        The code, and the metrics of `reconstruction` on the held-out rows; `related_auc` only where rows are related.

    Raises:
        ConfigError: If the method does not support so many bits.
        DataError: If there are too few vectors or pairs, one is not finite, or a related row does not exist.
    """
    _check(vectors)
    examples = (
        np.arange(len(vectors))[:, None]
        if related is None
        else _checked_pairs(related, len(vectors))
    )
    if len(examples) < MIN_ROWS:
        raise DataError(
            f"vectors: must have at least {MIN_ROWS} rows to train and evaluate a code; given {len(examples)}"
        )
    order = np.random.default_rng(config.seed).permutation(len(examples))
    num_held_out = min(NUM_HELD_OUT, len(examples) // 20)
    held_out, train = examples[np.sort(order[:num_held_out])], examples[order[num_held_out:]]
    generator = torch.Generator().manual_seed(config.seed)
    dim = vectors.shape[1]
    made = VectorCode(config, dim, build_code(config.code, dim=dim, generator=generator))
    objective = build_objective(
        config.objective
        if related is not None
        else config.objective.model_copy(update={"sp_triples": "random"}),
        BuildContext(
            dim=dim,
            num_words=0,
            words=None,
            generator=generator,
            code=made.code,
            num_bits=made.num_bits,
        ),
    )
    sample = _tensor(vectors[np.unique(train[:NUM_FITTED])])
    made.code.fit(sample)
    objective.fit(sample)
    _train(objective, made, vectors, train, progress=progress or (lambda *_: None))
    made.code.eval()
    with torch.no_grad():
        found = objective.held_out_totals(_read, _batch(vectors, held_out))
    return made, {name: total / count for name, (total, count) in found.items() if count}


def _checked_pairs(related: np.ndarray, rows: int) -> np.ndarray:
    """Return pairs of rows [pairs, 2]; refuse other shapes and rows that do not exist."""
    if related.ndim != 2 or related.shape[1] != 2 or related.dtype.kind not in "iu":
        raise DataError(
            f"related: must be row numbers [pairs, 2]; given {related.dtype} {list(related.shape)}"
        )
    if related.size and not (related.min() >= 0 and related.max() < rows):
        raise DataError(
            f"related: must be rows from 0 to {rows - 1}; given {related.min()} to {related.max()}"
        )
    return related


@dataclass(frozen=True)
class _Vectors:
    """A batch of vectors in place of one of sentences: one column [rows, dim], or two of related rows."""

    parts: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.parts[0])


def _batch(vectors: np.ndarray, examples: np.ndarray) -> _Vectors:
    """Return the vectors of examples, rows or pairs of rows [examples, 1 or 2]."""
    return _Vectors(tuple(_tensor(vectors[column]) for column in examples.T))


def _read(sentences: Any, *, is_training: bool = True, tokens: bool = False) -> tuple[Tensor, ...]:
    """Return vectors unchanged, where the objective reads sentences."""
    del is_training, tokens
    return (sentences,)


def _train(
    objective: Objective,
    made: VectorCode,
    vectors: np.ndarray,
    examples: np.ndarray,
    *,
    progress: Progress,
) -> None:
    """Train the decoder on the given rows or pairs of rows, and the method where it is trained by steps."""
    config = made.config
    parts = [objective, made.code] if config.code.is_trained else [objective]
    trained = [
        parameter for part in parts for parameter in part.parameters() if parameter.requires_grad
    ]
    optimizer = torch.optim.Adam(trained, lr=config.learning_rate)
    generator = torch.Generator().manual_seed(config.seed)
    num_steps = config.epochs * (len(examples) // config.batch_size or 1)
    for step in range(num_steps):
        place = step % (num_steps // config.epochs)
        if place == 0:
            shuffled = examples[torch.randperm(len(examples), generator=generator).numpy()]
        batch = shuffled[place * config.batch_size : (place + 1) * config.batch_size]
        # In the order of the file, which may be memory-mapped.
        batch = batch[np.argsort(batch[:, 0], kind="stable")]
        optimizer.param_groups[0]["lr"] = config.learning_rate * (1 - step / num_steps)
        optimizer.zero_grad(set_to_none=True)
        objective(_read, _batch(vectors, batch), generator=generator).backward()
        optimizer.step()
        progress("training", step + 1, num_steps)


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


VECTOR_SUFFIXES = (".npy", ".npz", ".parquet")


def check_vector_file(path: Path) -> None:
    """Check that the name of a file to write ends in one of `VECTOR_SUFFIXES`; without an end it is a ``.npy`` file.

    Raises:
        ConfigError: If it ends otherwise.
    """
    if path.suffix and path.suffix.lower() not in VECTOR_SUFFIXES:
        raise ConfigError(f"{path}: must end in {', '.join(VECTOR_SUFFIXES)}; given {path.suffix}")


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

            values = pa.FixedSizeListArray.from_arrays(
                pa.array(vectors.reshape(-1)), vectors.shape[1]
            )
            parquet.write_table(
                pa.table({"text": pa.array(texts, pa.string()), "vector": values}), stream
            )
        else:
            np.save(stream, vectors)


def read_vectors(path: Path) -> np.ndarray:
    """Return the vectors of a `.npy` file, memory-mapped, or `vectors` of an `.npz` [rows, dim].

    Raises:
        DataError: If it is missing or not such a file.
    """
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
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
