"""A corpus of many files -> a folder of vectors (`raysent.models.vector_folder`), on this machine or on a cluster.

    files of text -> those that are not encoded yet -> blocks of sentences -> a Parquet file for each, whole or absent

On this machine, processes encode blocks, and this process reads and writes. On a cluster, each file is one task of one
core, or of one GPU, which is run again if its machine or process is lost. Each process computes with one thread, and
the blocks are the same everywhere, so the files are bit-identical whatever the number of processes. Another call
continues with the files that are missing or damaged, or whose text has changed since.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from raysent.cost import parse_deadline
from raysent.data.corpus.sources import Source, find_sources
from raysent.data.text_files import batched
from raysent.data.texts import open_texts
from raysent.errors import BudgetError, ConfigError, DataError, RaysentError, WorkerError
from raysent.evaluation.members import load_shared, model_key, shared_name
from raysent.kernels.device_choice import chosen_device, usable_gpus
from raysent.kernels.devices import default_device, set_matmul_precision, torch_threads
from raysent.models import SentenceModel, load
from raysent.models.encoding import BLOCK_SENTENCES, PROCESS_BYTES, Encoding, Precision, unit_of
from raysent.models.schemes import is_scheme_name, with_scheme
from raysent.models.sentence_encoder import SentenceEncoder, check_size, encode_blocks
from raysent.models.vector_folder import VectorFolder, VectorFormat, VectorWriter
from raysent.parallel import Progress, num_processes_for
from raysent.platforms import expanded
from raysent.storage import (
    MAX_NAME_BYTES,
    Lease,
    check_name,
    is_remote,
    open_folder,
    remove_tree,
)
from raysent.sweeps.machines import workers_to_come
from raysent.training.ray_session import has_gpus, map_on_ray, num_jobs_at_once, ray_session

# Less text than this per process is encoded before another process is ready.
_LEAST_BYTES = 4 << 20
# A file that ends this many processes is refused.
_MAX_LOSSES = 3
# Jobs that are sent to a cluster for each worker, so that none waits for the next.
_JOBS_AHEAD = 2


@dataclass(frozen=True)
class EncodedCorpus:
    """What encoding a corpus has done.

    Attributes:
        folder: The folder of vectors.
        num_files: Files that were encoded by this call.
        num_rows: Their sentences.
        num_skipped: Files that were encoded before.
        num_left: Files that are left because a limit was reached.
        width: Numbers of a vector, or bytes of a code.
        stopped: Which limit was reached; empty if none was.
        damaged: Files of vectors that were encoded before and are damaged; they do not count as encoded.
    """

    folder: str
    num_files: int
    num_rows: int
    num_skipped: int
    num_left: int
    width: int
    stopped: str = ""
    damaged: tuple[str, ...] = ()

    def sentence(self, what: str = "sentences", *, precision: str = "float32") -> str:
        """Return in one line what the folder has; `what` is what its rows are called."""
        skipped = ""
        if self.num_skipped:
            skipped = f"; {self.num_skipped:,} were there already"
        return (
            f"{self.folder}: {self.num_files:,} files, {self.num_rows:,} {what}, "
            f"{self.width:,} {unit_of(precision)}{skipped}"
        )

    @property
    def rest(self) -> str:
        """What a limit left to encode, and how to continue; empty if nothing is left."""
        if not self.stopped:
            return ""
        return (
            f"{self.stopped}; {self.num_left:,} files are left; run the command again to continue"
        )


@dataclass(frozen=True)
class _File:
    """One file to encode, and its name in the folder of vectors; no column is the usual one."""

    source: Source
    name: str
    version: str
    origin: str
    column: str | None
    splits_sentences: bool

    def blocks(self) -> Iterator[tuple[list[str], bool]]:
        """Yield the sentences in blocks, and whether a block is the last; at least one, which may be empty."""
        opened = open_texts(self.source, column=self.column, splits_sentences=self.splits_sentences)
        texts = (text for block in opened.blocks for text in block)
        current: list[str] = []
        for following in batched(texts, BLOCK_SENTENCES):
            if current:
                yield current, False
            current = following
        yield current, True


@dataclass(frozen=True)
class _Target:
    """Where vectors go, and how they are computed, by a model whose name every machine can load."""

    model: str
    folder: str
    format: VectorFormat
    encoding: Encoding

    def writing(self, file: _File) -> contextlib.AbstractContextManager[VectorWriter]:
        """Return a block that writes a file."""
        return VectorFolder(self.folder).writing(
            file.name, self.format, version=file.version, origin=file.origin
        )

    def has(self, file: _File) -> bool:
        """Return whether a file has been encoded, is whole and has not changed since; refuse another of its name."""
        encoded = VectorFolder(self.folder).find_file(file.name)
        if encoded is None:
            return False
        # A text that is gone by now may be replaced by the one that took its name.
        origin = encoded.origin
        if origin and origin != file.origin and (is_remote(origin) or Path(origin).exists()):
            raise DataError(
                f"input {file.source.path}: would replace {origin}, which is there too; "
                f"encode it into another folder, or remove {self.folder}/{file.name}.parquet"
            )
        return (encoded.source, encoded.format) == (file.version, self.format.key)

    def run(self, file: _File) -> int:
        """Encode a file in a process of a cluster, and return its rows."""
        torch.set_num_threads(1)
        set_matmul_precision()
        _, encoder = load_shared(self.model, self.format.model_key)
        with self.writing(file) as writer:
            for texts, _ in file.blocks():
                writer.write(
                    self.encoding.rows(encoder.encode(texts, **self.encoding.options)), texts
                )
        return writer.num_rows


def encode_corpus(  # noqa: PLR0913 - the options of the command
    model: str | Path | SentenceEncoder,
    input: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    column: str | None = None,
    splits_sentences: bool = False,
    keeps_text: bool = True,
    encoding: Encoding | None = None,
    workers: int | None = None,
    address: str | None = None,
    deadline: str | None = None,
    progress: Progress = lambda *_: None,
) -> EncodedCorpus:
    """Encode files into a folder of vectors; see `raysent.encode_corpus`.

    `encoding` is how sentences become rows, and `deadline` that of this call, such as ``30m`` or an ISO time.

    Raises:
        RaysentError: If the model, a file or the folder cannot be used.
    """
    encoding = encoding or Encoding()
    limit_s = math.inf
    if deadline is not None:
        limit_s = parse_deadline(deadline, start=datetime.datetime.now(datetime.UTC))
    name = _name_of(model)
    if isinstance(model, str | Path):
        encoder = load(name)
    else:
        encoder = model
    encoding.check(encoder, name)
    # Of several prompts the one that the model has is part of the folder's format.
    if not isinstance(encoding.prompt_name, str | None):
        prompt_name = encoder.prompt_for(tuple(encoding.prompt_name))
        encoding = replace(encoding, prompt_name=prompt_name)
    check_size("workers", 1 if workers is None else workers)
    folder = VectorFolder(output if is_remote(output) else Path(output).absolute())
    files = _find_files(input, folder, column=column, splits_sentences=splits_sentences)
    with contextlib.nullcontext() if address is None else ray_session(address), _held(folder):
        encoding = replace(encoding, device=_choose_device(encoder, folder, address))
        options = {"column": column or "", "sentences": splits_sentences}
        format = _format_of(
            shared_name(name), encoder, encoding, has_text=keeps_text, options=options
        )
        target = _Target(format.model, folder.name, format, encoding)
        folder.use(format)
        todo = [file for file in files if not target.has(file)]
        damaged = _damaged_files(folder, todo)
        counts: list[int] = []
        num_rows = 0
        stopped = ""
        end = time.monotonic() + limit_s

        def note(count: int = 0) -> None:
            """Show that sentences have been encoded, and stop at the limit."""
            nonlocal num_rows
            num_rows += count
            progress(f"{len(counts)} of {len(todo)} files done; sentences", num_rows, None)
            if time.monotonic() > end:
                raise BudgetError(f"encoding: the time of {deadline} is over")

        try:
            if address is None:
                num_processes = workers or _num_processes(todo)
                if encoding.device == "cuda":
                    num_processes = 1  # processes would share one GPU and its memory
                row_counts = _encode_here(encoder, target, todo, num_processes, note)
            else:
                row_counts = _encode_on_ray(target, todo, address, workers, note)
            with contextlib.closing(row_counts):
                for count in row_counts:
                    counts.append(count)
        except BudgetError as error:
            stopped = str(error)
    return EncodedCorpus(
        folder=folder.name if folder.local is None else str(output),
        num_files=len(counts),
        num_rows=sum(counts),
        num_skipped=len(files) - len(todo),
        num_left=len(todo) - len(counts),
        width=format.width,
        stopped=stopped,
        damaged=tuple(folder.path_of(name) for name in damaged),
    )


def _damaged_files(folder: VectorFolder, todo: Sequence[_File]) -> list[str]:
    """Return the names of files that must be encoded although the folder has one of their name."""
    if not todo:
        return []
    names = set(folder.names())
    return [
        file.name for file in todo if file.name in names and folder.find_file(file.name) is None
    ]


def _format_of(
    name: str,
    encoder: SentenceEncoder,
    encoding: Encoding,
    *,
    has_text: bool,
    options: dict[str, Any],
) -> VectorFormat:
    """Return the format of the vectors of a call; a prompt and a device are named only where they are not usual."""
    all_options: dict[str, Any] = {
        "normalize": encoding.normalize,
        "bfloat16": encoding.bfloat16,
        "batch_size": encoding.batch_size,
    }
    if encoding.prompt_name:
        all_options["prompt_name"] = encoding.prompt_name
    all_options.update(options)
    if encoding.device != "cpu":
        all_options["device"] = encoding.device
    return VectorFormat(
        model=name,
        model_key=model_key(name),
        measure="hamming" if encoder.similarity_measure == "hamming" else "cosine",
        precision=cast(Precision, encoding.precision),
        dim=encoder.get_sentence_embedding_dimension(),
        has_text=has_text,
        options=all_options,
    )


def _choose_device(encoder: SentenceEncoder, folder: VectorFolder, address: str | None) -> str:
    """Return the device: what is chosen, what the folder was begun with, or what there is; a GPU must be there."""
    workers = None
    if address is not None:
        workers = workers_to_come()
    if address is None:
        has_any = default_device().type == "cuda"
    else:
        has_any = has_gpus() or bool(workers and usable_gpus(workers.GPU))
    begun_format = folder.find_format()
    asked_device = chosen_device()
    device = asked_device
    if not device and begun_format is not None:
        device = str(begun_format.options.get("device", "cpu"))
    if device == "cuda" and not has_any:
        reason = f"output {folder.name}: was begun on GPUs; "
        if asked_device:
            reason = "device cuda: "
        machines = "this machine" if address is None else "the cluster"
        raise ConfigError(f"{reason}{machines} has no GPU; name another folder or other machines")
    if device:
        return device
    if has_any and isinstance(encoder, SentenceModel):
        return "cuda"
    return "cpu"


def _encode_here(
    encoder: SentenceEncoder,
    target: _Target,
    todo: Sequence[_File],
    num_processes: int,
    note: Callable[[int], None],
) -> Generator[int]:
    """Encode files in processes of this machine, in order; yields the rows of each.

    A file whose process dies is encoded again by new processes.
    """
    done = losses = 0
    while done < len(todo):
        try:
            for count in _encode_in_processes(encoder, target, todo[done:], num_processes, note):
                done = done + 1
                losses = 0
                yield count
        except WorkerError:
            losses += 1
            if losses == _MAX_LOSSES:
                raise


def _encode_in_processes(
    encoder: SentenceEncoder,
    target: _Target,
    todo: Sequence[_File],
    num_processes: int,
    note: Callable[[int], None],
) -> Iterator[int]:
    """Encode files once, in order; yields the rows of each. One stream of blocks keeps all processes busy."""
    ahead: deque[tuple[list[str], bool]] = deque()

    def blocks() -> Iterator[list[str]]:
        for file in todo:
            for texts, is_last in file.blocks():
                ahead.append((texts, is_last))
                yield texts

    options = target.encoding.options
    set_matmul_precision()
    with (
        torch_threads(1),  # as in other processes, so that the bits are the same
        contextlib.closing(
            encode_blocks(encoder, blocks(), num_processes=num_processes, **options)
        ) as encoded,
    ):
        # Blocks come in the order in which they were sent: `ahead` has the texts of each, and where a file ends.
        for file in todo:
            with target.writing(file) as writer:
                for vectors in encoded:
                    texts, is_last = ahead.popleft()
                    writer.write(target.encoding.rows(vectors), texts)
                    note(len(texts))
                    if is_last:
                        break
            yield writer.num_rows


def _encode_on_ray(
    target: _Target,
    todo: Sequence[_File],
    address: str,
    workers: int | None,
    note: Callable[..., None],
) -> Generator[int]:
    gpus_each = 1.0 if target.encoding.device == "cuda" else 0.0
    if not workers:  # more than the cluster can run now, so that it grows and no worker waits
        future_workers = workers_to_come()
        num_jobs = num_jobs_at_once(gpus_each)
        if future_workers is not None:
            jobs_each = int(future_workers.GPU if gpus_each else future_workers.CPU)
            num_jobs = max(num_jobs, future_workers.num * jobs_each)
        workers = _JOBS_AHEAD * num_jobs
    numbered_rows = map_on_ray(
        target.run, todo, address=address, max_running=workers, gpus_each=gpus_each, on_wait=note
    )
    with contextlib.closing(numbered_rows):
        for _, num_rows in numbered_rows:
            note(num_rows)
            yield num_rows


def _num_processes(todo: Sequence[_File]) -> int:
    """Return the number of processes that pay; all that fit if the size of the text is unknown."""
    num_processes = num_processes_for(bytes_each=PROCESS_BYTES)
    if any(file.source.etag or file.source.is_dataset for file in todo):
        return num_processes
    num_bytes = sum(Path(file.source.path).stat().st_size for file in todo)
    return max(1, min(num_processes, num_bytes // _LEAST_BYTES))


@contextlib.contextmanager
def _held(folder: VectorFolder) -> Iterator[None]:
    """Let one process at a time write into a local folder, and remove what a killed one left half-written.

    A new folder is removed if an error leaves no file in it. In a bucket two processes do the same work twice, and
    neither harms the other.
    """
    if folder.local is None:
        yield
        return
    is_new = not folder.local.exists()
    lease = Lease(folder.local)
    try:
        for path in folder.local.rglob(".*.parquet.*"):
            path.unlink(missing_ok=True)
        yield
    except RaysentError:
        if is_new and not folder.names():
            remove_tree(folder.local, below=folder.local.parent)
        raise
    finally:
        lease.release()


def _name_of(model: str | Path | SentenceEncoder) -> str:
    """Return the name that a model is loaded by, the local folder of one in a bucket; refuse one in memory."""
    if isinstance(model, SentenceEncoder):
        if model.source is None:
            raise ConfigError(
                "model: must be saved in a folder, so that its vectors can be continued; save it first"
            )
        return model.source
    name = with_scheme(str(model))
    if is_scheme_name(name):
        return name
    return str(open_folder(model))


def _find_files(
    input: str | Path | Sequence[str | Path],
    folder: VectorFolder,
    *,
    column: str | None,
    splits_sentences: bool,
) -> list[_File]:
    """Return the files of all paths, and their vectors' places in the folder, all different.

    The folder's own Parquet files are no text, where it is among the text.
    """
    inputs = [input] if isinstance(input, str | Path) else input
    files: dict[str, _File] = {}
    for path in map(str, inputs):
        try:
            sources = find_sources(path)
        except DataError as error:
            raise DataError(str(error).replace("corpus.path", "input", 1)) from None
        for source in sources:
            name = _name_below(source.path, path)
            if name.startswith(".") or "/." in name:
                raise DataError(
                    f"input {path}: {name}: must not begin with a dot, as no search finds it; rename it"
                )
            if source.path.encode(errors="replace").decode() != source.path:
                raise DataError(f"input {source.path!a}: must be a name in UTF-8; rename the file")
            _check_file_name(source.path, name)
            if name in files and files[name].source.path != source.path:
                raise DataError(
                    f"input {path}: {source.path} and {files[name].source.path} would both become {name}; "
                    "encode them into different folders"
                )
            origin = source.path
            if not is_remote(origin):
                # A link may come to name another version of the file, so it is not followed.
                origin = os.path.abspath(origin)  # noqa: PTH100
            files[name] = _File(source, name, source.version(), origin, column, splits_sentences)
    # A Parquet file inside the folder is its own where it is named after a text, encoded now or before.
    vector_names = set()
    for name, file in files.items():
        text_name = folder.name_of(file.source.path)
        if text_name is not None and (text_name in files or folder.find_file(text_name)):
            vector_names.add(name)
    names = sorted(files.keys() - vector_names)
    if not names:
        raise DataError("input: must name at least one file; given none")
    return [files[name] for name in names]


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _check_file_name(path: str, name: str) -> None:
    """Refuse a name that the file of its vectors, which a bucket may hold and a disk not, cannot have."""
    for part in name.split("/"):
        check_name(part, where=f"input {path!a}")
        if len(part.encode()) > MAX_NAME_BYTES or _CONTROL.search(part):
            raise DataError(
                f"input {path!a}: a name must be of at most {MAX_NAME_BYTES} bytes, without control "
                "characters, so that its vectors can be named by it; rename the file"
            )


def _name_below(file: str, path: str) -> str:
    """Return a file's name below the folder that a path names; of a glob, what is before its first wildcard."""
    if is_remote(path):
        root = path.rstrip("/")
    else:
        root = str(expanded(path))
    if file == root:
        return file.rpartition("/")[2]
    wildcards = [root.find(mark) for mark in "*?[" if mark in root]
    # An address of a bucket has no wildcards: these characters belong to names there.
    if wildcards and not is_remote(path):
        root = root[: min(wildcards)].rpartition("/")[0]
    return file.removeprefix(root).lstrip("/")
