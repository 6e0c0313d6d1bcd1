"""`raysent binarize`: what is typed, and what is seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raysent.cli.console import ProgressLines, messages, print_json, results
from raysent.config import Document, Override, set_dotted, validate
from raysent.errors import DataError
from raysent.models.vector_codes import VectorCodeConfig, load_code, make_code
from raysent.storage import atomic_write, storage_errors


def binarize(
    vectors: Path,
    *,
    output: Path,
    overrides: Sequence[Override],
    keep: Path | None,
    use: Path | None,
    as_json: bool,
) -> int:
    """Make a code for the vectors of a file, or take a kept one, and write their bits; returns the exit code."""
    given = read_vectors(vectors)
    found: dict[str, float] = {}
    if use is not None:
        made = load_code(use)
    else:
        config = validate(VectorCodeConfig, _document(overrides))
        with ProgressLines(is_quiet=as_json) as progress:
            made, found = make_code(given, config, progress=progress)
    codes = made.encode_packed(given)
    with storage_errors(output), atomic_write(output) as temporary, temporary.open("wb") as stream:
        np.save(stream, codes)
    if keep is not None:
        made.save(keep)
    about: dict[str, Any] = {"codes": str(output), "rows": len(codes), "bits": made.num_bits, **found}
    if as_json:
        print_json(about)
        return 0
    results.print(f"{output}: {len(codes):,} codes of {made.num_bits:,} bits", soft_wrap=True)
    if found:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
        messages.print(f"of vectors held out: {shown}", soft_wrap=True)
    return 0


def _document(overrides: Sequence[Override]) -> Document:
    """Return what the command line says of a code."""
    values: dict[str, Any] = {"code": {"type": "autoencoder"}}
    for override in overrides:
        set_dotted(values, override.name, override.value)
    options = {tuple(override.name.split(".")): override.option for override in overrides}
    return Document(values=values, options=options)


def read_vectors(path: Path) -> np.ndarray:
    """Return the vectors of a `.npy` file, memory-mapped [rows, dim].

    Raises:
        DataError: If it is missing or not such a file.
    """
    try:
        loaded: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; 'raysent encode' writes one, and so does numpy.save") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: must be a .npy file of numbers ({error}); write it again") from None
    return loaded
