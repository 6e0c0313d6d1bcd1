"""`encode_corpus`: files, folders and addresses of text as a folder of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raysent.exports.corpus import EncodedCorpus
from raysent.exports.corpus import encode_corpus as encode_files
from raysent.models.encoding import Encoding
from raysent.models.schemes import encoder_name
from raysent.models.sentence_encoder import SentenceEncoder, column_names
from raysent.pipeline.file_names import check_file
from raysent.progress import ProgressLines, messages


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
