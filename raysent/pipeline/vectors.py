"""Files and corpora encoded, indexed and searched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raysent.data.text_files import batched
from raysent.data.texts import read_texts
from raysent.errors import DataError
from raysent.exports.corpus import BLOCK_SENTENCES, PROCESS_BYTES, EncodedCorpus, Encoding
from raysent.exports.corpus import encode_corpus as encode_files
from raysent.exports.search import Hit, SearchIndex
from raysent.models import load as load_model
from raysent.models.schemes import encoder_name
from raysent.models.sentence_encoder import (
    DOCUMENT_PROMPTS,
    SentenceEncoder,
    check_size,
    column_names,
    encode_blocks,
)
from raysent.models.vector_codes import check_vector_file, write_vectors
from raysent.parallel import num_processes_for
from raysent.pipeline.arguments import check_file
from raysent.progress import ProgressLines, messages
from raysent.storage import is_remote, remove_folder

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


def encode_corpus(  # noqa: PLR0913 - the options of the command
    model: str | Path | SentenceEncoder,
    input: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    column: str | None = None,
    splits_sentences: bool = False,
    keeps_text: bool = True,
    precision: str = "float32",
    normalize: bool = False,
    batch_size: int = 512,
    bfloat16: bool = False,
    workers: int | None = None,
    address: str | None = None,
    time: str | None = None,
    prompt_name: str | Sequence[str] | None = None,
    progress: bool = True,
) -> EncodedCorpus:
    """Encode many files into a folder with a Parquet file for each; another call continues where one stopped.

    A Parquet file appears whole or not at all. Files that were encoded by the same model with the same settings are
    skipped unless their text has changed. The files are bit-identical whatever the number of processes. A Parquet file
    has the columns `file`, `row` (from 0), `text`, and `vector`, a list of fixed size.

    Args:
        model: As for `load`; on a cluster, its folder must be reachable from every machine.
        input: Files, folders, globs or ``s3://`` addresses of text, as a corpus for training is named.
        output: The folder, also in ``s3://``.
        column: Column of the text of tables; by default ``text``, else ``sentence``.
        splits_sentences: Whether running text is split into sentences, as for training; otherwise each line or row has
            a vector.
        keeps_text: Whether the texts are written beside their vectors.
        precision: ``float32``, vectors [dim]; ``int8``, their directions [dim]; or ``ubinary``, uint8 [ceil(dim / 8)],
            the bits of a model with a code, or the signs of another one's vectors.
        normalize: Whether each vector gets length 1.
        batch_size: Sentences per batch.
        bfloat16: Whether products are computed in bfloat16; only for trained models.
        workers: Processes of this machine, by default as many as pay; or tasks at the same time on a cluster, by
            default one per core or GPU.
        address: A running Ray cluster. A task encodes a file, and is run again if its machine or process is lost. It
            has a GPU where `on_device` says so, where the folder was begun with GPUs, or of a trained model where the
            cluster has some. Vectors of a GPU have other last bits.
        time: Wall-clock limit of this call, such as ``30m``, or an ISO time.
        prompt_name: The model's prompt that is put before each text; of several the first that it, or each of several
            encoders, has.
        progress: Whether to show progress on standard error.

    Returns:
        What was done, and `stopped`, whether the time was over. Files that were complete by then are kept.

    Raises:
        ConfigError: If an argument is wrong.
        DataError: If a file cannot be read.
        ArtifactError: If the folder has vectors of another model or with other settings, or cannot be written.
        WorkerError: If the same file has ended several processes.
    """
    if column_names(input) is not None or isinstance(input, str | Path):
        check_file("input", input)
    else:
        for path in input:
            check_file("input", path)
    say = messages.print if progress else None
    with ProgressLines(prefix="encoding, ", is_quiet=not progress) as bar:
        return encode_files(
            model if isinstance(model, SentenceEncoder) else encoder_name(model, say=say),
            input,
            output,
            column=column,
            splits_sentences=splits_sentences,
            keeps_text=keeps_text,
            encoding=Encoding(precision, normalize, batch_size, bfloat16, prompt_name=prompt_name),
            workers=workers,
            address=address,
            deadline=time,
            progress=bar,
        )


def index(
    model: str | Path, input: str | Path | Sequence[str | Path], output: str | Path, **options: Any
) -> EncodedCorpus:
    """Make a folder of passages that `search` searches by vectors and by words; another call adds what is new.

    Args:
        model: As for `encode_corpus`; its prompt for documents is put before each passage.
        input: Text, as for `encode_corpus`: each line or row is a passage.
        output: The folder, also in ``s3://``.
        options: Further arguments of `encode_corpus`; with ``precision="int8"`` a search needs 1/32 of the memory.

    Raises:
        RaysentError: As `encode_corpus`; or if there are no passages, or bm25s is not installed.
    """
    is_new = not is_remote(output) and not Path(output).exists()
    encoded = encode_corpus(model, input, output, **{"prompt_name": DOCUMENT_PROMPTS, **options})
    if not encoded.stopped:
        made = SearchIndex(output)
        if not made.num_passages:
            if is_new:
                remove_folder(Path(output), below=Path(output).parent)
            paths = [input] if isinstance(input, str | Path) else input
            raise DataError(f"{', '.join(map(str, paths))}: must hold passages; given none")
        made.save_derived()
    return encoded


def search(
    index: str | Path,
    queries: str | Sequence[str],
    *,
    k: int = 10,
    by: str | None = None,
    weight: float | None = None,
    model: str | Path | None = None,
) -> list[list[Hit]]:
    """Return the best passages of a folder that `index` made, for each query; `SearchIndex` keeps it open.

    Args:
        index: The folder.
        queries: One query, or several.
        k: Passages of each query.
        by: As for `SearchIndex.search`: ``vectors``, ``words`` or ``fused``.
        weight: As for `SearchIndex.search`.
        model: The model that encoded the folder, if it is elsewhere by now.

    Raises:
        RaysentError: If an argument is wrong, the folder is none or damaged, or a library is needed and not installed.
    """
    return SearchIndex(index, model=model).search(queries, k=k, by=by, weight=weight)
