"""Files encoded into files of vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raysent.data.text_files import batched
from raysent.data.texts import read_texts
from raysent.errors import DataError
from raysent.models import load as load_model
from raysent.models.encoding import BLOCK_SENTENCES, PROCESS_BYTES, Encoding
from raysent.models.schemes import encoder_name
from raysent.models.sentence_encoder import check_size, encode_blocks
from raysent.models.vector_codes import check_vector_file, write_vectors
from raysent.parallel import num_processes_for
from raysent.pipeline.file_names import check_file
from raysent.progress import ProgressLines, messages

# With fewer blocks per process, another process would be ready too late to help.
_LEAST_BLOCKS = 4


def encode_file(  # noqa: PLR0913 - the options of the command
    model: str | Path,
    file: str | Path | None,
    *,
    output: str | Path,
    column: str | None = None,
    header: bool = True,
    batch_size: int = 512,
    normalize: bool = False,
    precision: str = "float32",
    bfloat16: bool = False,
    processes: int | None = None,
    progress: bool = True,
) -> tuple[int, int]:
    """Encode the lines or rows of a file into a file of vectors.

    Args:
        model: As for `load`.
        file: One sentence per line; or a table, Markdown or HTML, as `raysent.data.texts.read_texts` reads them; also
            in ``s3://``. None for lines from standard input.
        output: The file to write: ``.npy``, ``.npz`` (``vectors``) or ``.parquet`` (``text``, ``vector``); float32
            [sentences, dim], or uint8 [sentences, ceil(bits / 8)].
        column: Column of the text of a table; by default ``text``, else ``sentence``.
        header: Whether the first line of a ``.csv`` or ``.tsv`` file names its columns; without it they are ``0``, ….
        batch_size: Sentences per batch.
        normalize: Whether each vector gets length 1.
        precision: ``float32``; ``int8``, the direction; or ``ubinary``, the bits of a model with a code or else the
            signs, eight per byte.
        bfloat16: Whether products are computed in bfloat16; only for trained models.
        processes: Number of processes; by default as many as pay.
        progress: Whether to show progress on standard error.

    Returns:
        The shape of the array.

    Raises:
        RaysentError: If the model cannot do what is asked, or a file cannot be read or written.
    """
    check_file("file", file)
    model, output = encoder_name(model, say=messages.print if progress else None), Path(output)
    encoder = load_model(model)
    encoding = Encoding(precision, normalize=normalize, batch_size=batch_size, bfloat16=bfloat16)
    encoding.check(encoder, model)
    check_vector_file(output)
    check_size("processes", 1 if processes is None else processes)
    sentences, found = read_texts(
        None if file is None else str(file), column=column, has_header=header
    )
    if not sentences:
        raise DataError(f"{file}: must hold text; given no row of it")
    blocks = list(batched(sentences, BLOCK_SENTENCES))
    if processes is None:
        processes = min(
            num_processes_for(bytes_each=PROCESS_BYTES), max(len(blocks) // _LEAST_BLOCKS, 1)
        )
    encoded: list[np.ndarray] = []
    with ProgressLines(is_quiet=not progress) as bar:
        for vectors in encode_blocks(encoder, blocks, num_processes=processes, **encoding.options):
            encoded.append(encoding.rows(vectors))
            bar("encoding", sum(len(one) for one in encoded), len(sentences))
    array = np.concatenate(encoded)
    write_vectors(output, array, sentences)
    # Last, since a mistake is one line.
    if found and column is None and header and progress:
        messages.print(f"{file}: text = '{found}' (found by name)", style="dim", soft_wrap=True)
    return array.shape[0], array.shape[1]
