"""`raysent encode`: what is typed, and what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import raysent
from raysent.cli.console import ProgressLines, messages
from raysent.cli.reading import read_lines
from raysent.errors import ConfigError
from raysent.kernels.hamming import pack_bits
from raysent.models import SentenceModel
from raysent.models.sentence_encoder import SentenceEncoder, encode_blocks
from raysent.parallel import num_processes_for
from raysent.storage import atomic_write, storage_errors

# Sentences between two signs of life.
ENCODED_AT_ONCE = 8192
# Fewer blocks a process are encoded before another process has started and read the model.
LEAST_PARTS = 4
PROCESS_BYTES = 2 << 30
PRECISIONS = ("float32", "ubinary")


def encode(
    model: str,
    file: Path | None,
    *,
    output: Path,
    options: dict[str, Any],
    precision: str = "float32",
    num_processes: int | None = None,
) -> int:
    """Encode the lines of a file, or of standard input; `options` are those of the encoder's `encode`."""
    encoder = raysent.load(model)
    _check_precision(precision, encoder, model)
    if not options["bfloat16"]:
        del options["bfloat16"]  # only trained models know it
    elif not isinstance(encoder, SentenceModel):
        raise ConfigError(f"--bfloat16: must be asked of a trained model; given {model}; leave it out")
    sentences = read_lines(file)
    parts = [sentences[first : first + ENCODED_AT_ONCE] for first in range(0, len(sentences), ENCODED_AT_ONCE)]
    if num_processes is None:
        num_processes = min(num_processes_for(None, bytes_each=PROCESS_BYTES), max(len(parts) // LEAST_PARTS, 1))
    blocks: list[np.ndarray] = []
    num_encoded = 0
    with ProgressLines() as progress:
        for vectors in encode_blocks(encoder, parts, num_processes=num_processes, **options):
            blocks.append(vectors if precision == "float32" else pack_bits(vectors))
            num_encoded += len(vectors)
            progress("encoding", num_encoded, len(sentences))
    vectors = np.concatenate(blocks)
    with storage_errors(output), atomic_write(output) as temporary, temporary.open("wb") as stream:
        np.save(stream, vectors)
    unit = "dimensions" if precision == "float32" else "bytes each"
    messages.print(f"{output}: {vectors.shape[0]:,} sentences, {vectors.shape[1]:,} {unit}", soft_wrap=True)
    return 0


def _check_precision(precision: str, encoder: SentenceEncoder, model: str) -> None:
    """Refuse a precision that the model cannot give.

    Raises:
        ConfigError: With what it can.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"--precision: must be {' or '.join(PRECISIONS)}; given '{precision}'")
    if precision == "ubinary" and encoder.similarity_measure != "hamming":
        raise ConfigError(f"--precision ubinary: {model} has no code; train one with 'raysent train binary'")
