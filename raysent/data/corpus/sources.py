"""The configuration of a corpus, and its files: paths, folders, globs or ``s3://`` -> files -> blocks of decoded lines.

Memory holds one block of a file at a time. Every error in a file is one line with the file's name.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from raysent import storage
from raysent.config import StrictModel
from raysent.data.corpus.embedded import docs_file
from raysent.data.tables import (
    DATASET_FILE,
    SPLITS_FILE,
    arrow_files,
    is_dataset_folder,
    split_names,
)
from raysent.data.text_files import (
    complete_lines,
    lines_of,
    open_bytes,
    reading_errors,
    text_blocks,
)
from raysent.errors import DataError
from raysent.parallel import Progress
from raysent.platforms import expanded

# Suffixes of the files that a folder contributes: those of the first group that it has any of. A file that is named or
# matched by a glob may have any suffix.
_TEXT = (".txt", ".text", ".jsonl")
_MARKDOWN = (".md", ".markdown")
_HTML = (".html", ".htm", ".xhtml")
_TABLES = (".csv", ".tsv", ".parquet")
_SUFFIXES = (_TEXT, (*_MARKDOWN, *_HTML), _TABLES)
_S3 = "s3://"

SourceKind = Literal["text", "json", "markdown", "html", "table"]


class CorpusConfig(StrictModel):
    """Which text to train on and how to read it.

    Attributes:
        path: ``docs`` for the embedded corpus; else files, folders, globs or ``s3://``: plain text, ``.jsonl``,
            ``.md``, ``.html``, ``.csv``, ``.tsv`` and ``.parquet``, also with ``.gz``, and folders that `datasets`
            saved.
        format: ``sentences``: one sentence per line, blank lines between documents. ``text``: running text or one
            paragraph per line, one document per file. ``auto`` decides for each file by its first lines. The same
            holds for the rows of a table; without `document_field`, each row of running text is a document.
        text_field: Field of a ``.jsonl`` object or column of a table that contains the text. Without a column
            ``text``, a column ``sentence`` is read. The fields ``sentences`` and ``paragraphs`` of ``.jsonl`` are read
            as well.
        language: Code of ISO 639, such as ``de``, by which running text is split into sentences. ``auto`` finds that of
            most of the text, and in another one of the documents that are in it.
        document_field: Column of a table, or field of a ``.jsonl`` object, that identifies a row's document. The rows
            of a document must follow one another.
        across_documents: Whether windows may cross the boundary between two documents.
        max_sentences: Maximum number of sentences to read.
        validation_fraction: Fraction of the sentences to hold out, in whole documents.
        max_length: Maximum number of tokens of a sentence; longer ones are truncated.
        cache_dir: Folder of prepared corpora; default ``$RAYSENT_CACHE``, else the user's cache folder.
        seed: Seed of the choice of validation documents.
        num_processes: Number of processes that read the text; by default chosen by cores, memory and size of the text.
            The result does not depend on it.
    """

    path: str | list[str] = "docs"
    format: Literal["auto", "sentences", "text"] = "auto"
    text_field: str = "text"
    language: str = Field(default="auto", pattern=r"^(auto|[a-z]{2,3})$")
    document_field: str | None = Field(default=None, min_length=1)
    across_documents: bool = False
    max_sentences: int | None = Field(default=None, ge=4)
    validation_fraction: float = Field(default=0.05, gt=0, le=0.5)
    max_length: int = Field(default=50, ge=1)
    cache_dir: str | None = None
    seed: int = Field(default=0, ge=0)
    num_processes: int | None = Field(default=None, ge=1)

    @field_validator("path")
    @classmethod
    def _is_utf_8(cls, path: str | list[str]) -> str | list[str]:
        try:
            "".join(path).encode()
        except UnicodeEncodeError:
            raise ValueError("must be a name in UTF-8; rename the file") from None
        return path

    @property
    def name(self) -> str:
        """The paths, for messages."""
        if isinstance(self.path, str):
            return self.path
        return ", ".join(self.path)


@dataclass(frozen=True)
class Source:
    """One file of text, or the folder of one dataset.

    Attributes:
        path: Local path or ``s3://`` address.
        etag: ETag and size of a remote file, which identify its content; empty for a local file.
        is_dataset: Whether it is a folder that `datasets` saved.
    """

    path: str
    etag: str = ""
    is_dataset: bool = False

    @property
    def kind(self) -> SourceKind:
        """How the file is read, by the end of its name."""
        name = self.path.removesuffix(".gz").lower()
        if name.endswith(".jsonl"):
            return "json"
        if self.is_dataset or name.endswith(_TABLES):
            return "table"
        if name.endswith(_MARKDOWN):
            return "markdown"
        if name.endswith(_HTML):
            return "html"
        return "text"

    @property
    def suffix(self) -> str:
        """The end of the name, lower case, that decides how a table is read; empty for a dataset."""
        if self.is_dataset:
            return ""
        return Path(self.path.removesuffix(".gz")).suffix.lower()

    def fingerprint(self) -> str:
        """Return an identifier of the content, independent of the path."""
        if self.etag:
            return self.etag
        digests = []
        for file in self._files():
            with reading_errors(file), Path(file).open("rb") as stream:
                digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
        if not self.is_dataset:
            return digests[0]
        return storage.content_key(digests)

    def version(self) -> str:
        """Return what changes when the file is changed: its ETag in a bucket, else its size and time of change.

        Raises:
            DataError: If the file cannot be read.
        """
        if self.etag:
            return self.etag
        with reading_errors(self.path):
            stats = [Path(file).stat() for file in self._files()]
        return f"{sum(stat.st_size for stat in stats)}-{max(stat.st_mtime_ns for stat in stats)}"

    def _files(self) -> list[str]:
        """Return the files that hold the text on this machine."""
        if self.is_dataset:
            return arrow_files(self.path)
        return [self.path]

    @property
    def num_bytes(self) -> int:
        """Bytes of the file as it is stored; 0 if they are not known.

        Raises:
            DataError: If the file cannot be read.
        """
        if self.etag:
            size = self.etag.rpartition("-")[2]
            if self.is_dataset or not size.isdigit():
                return 0
            return int(size)
        return int(self.version().partition("-")[0])

    def blocks(self, *, keeps_lines: bool = False) -> Iterator[list[str]]:
        """Yield the lines in blocks of about a megabyte, without line breaks; only a line feed ends a line.

        Args:
            keeps_lines: Whether a line longer than a block is read as a whole; otherwise it is split at white space,
                unless the file is JSON.

        Raises:
            DataError: If the file cannot be read, is not UTF-8 or holds NUL bytes.
        """
        is_json = self.kind == "json"
        splits_lines = not is_json and not keeps_lines
        with reading_errors(self.path), open_bytes(self.path) as stream:
            texts = text_blocks(stream, source=self.path)
            for complete in complete_lines(texts, splits_lines=splits_lines):
                if is_json:
                    # Text of JSON has no carriage return, so one beside it ends a line, as in a table.
                    yield lines_of(complete.replace("\r\n", "\n").replace("\r", "\n"))
                else:
                    yield lines_of(complete)


def corpus_sources(config: CorpusConfig, progress: Progress | None = None) -> list[Source]:
    """Return the files of a corpus, also of the embedded one.

    Raises:
        DataError: If a path matches no file.
    """
    if config.path == "docs":
        return [Source(str(docs_file(progress)))]
    return find_sources(config.path)


def find_sources(path: str | list[str]) -> list[Source]:
    """Return the files of a path or of several: in the given order, and sorted inside a folder or glob.

    Raises:
        DataError: If a path matches no file.
    """
    paths = [path] if isinstance(path, str) else path
    sources = [source for each_path in paths for source in _find(each_path)]
    if not sources:
        raise DataError("corpus.path: must name at least one file; given an empty list")
    return sources


def _find(path: str) -> list[Source]:
    if not path.strip():
        raise DataError("corpus.path: must name a file, a folder or a glob; given an empty name")
    if storage.is_remote(path):
        return _find_remote(_S3 + path.removeprefix("s3:").lstrip("/"))
    local = expanded(path)
    if local.is_dir():
        if is_dataset_folder(local):
            return _find_datasets(local)
        return _find_in_folder(local)
    if local.is_file():
        return [Source(str(local))]
    if local.exists():
        # A pipe can be read only once, so its content cannot be hashed first.
        raise DataError(
            f"corpus.path: {path}: must be a file or a folder; given a pipe or a device; save it as a file"
        )
    if not glob.has_magic(path):
        raise DataError(f"corpus.path: {path}: no such file or folder{_nearest(local)}")
    matched_paths = glob.glob(str(local), recursive=True)  # noqa: PTH207 - `Path.glob` does not accept absolute patterns
    matches = sorted(match for match in matched_paths if Path(match).is_file())
    if not matches:
        raise DataError(
            f"corpus.path: {path}: no file matches; a glob is relative to the current folder"
        )
    return [Source(match) for match in matches]


def _nearest(path: Path) -> str:
    """Return a hint with the nearest existing parent folder, or an empty string."""
    existing = next((parent for parent in path.parents if parent.exists()), None)
    if existing and existing not in (Path(), path.parent):
        return f"; {existing} exists"
    return ""


def _find_datasets(folder: Path) -> list[Source]:
    if not (folder / SPLITS_FILE).is_file():
        return [Source(str(folder), is_dataset=True)]
    return [Source(str(folder / split), is_dataset=True) for split in split_names(str(folder))]


def _find_in_folder(folder: Path) -> list[Source]:
    try:
        paths = sorted(
            path for path in folder.rglob("*") if _group(path.relative_to(folder)) is not None
        )
    except PermissionError as error:
        raise DataError(
            f"corpus.path: {error.filename}: cannot be read; change its permissions"
        ) from None
    files = _of_first_group(
        [(path.relative_to(folder), Source(str(path))) for path in paths if path.is_file()]
    )
    if not files:
        raise DataError(
            f"corpus.path: {folder}: contains no {_SHOWN} file (or .gz of these); name others by a glob"
        )
    return files


_SHOWN = ", ".join(suffix for group in _SUFFIXES for suffix in group)


def _group(path: Path) -> int | None:
    """Return which group of suffixes a file belongs to; None for another suffix and for a hidden file."""
    if any(part.startswith(".") for part in path.parts):
        return None
    name = path.name.removesuffix(".gz").lower()
    return next((number for number, group in enumerate(_SUFFIXES) if name.endswith(group)), None)


def _of_first_group(sources: list[tuple[Path, Source]]) -> list[Source]:
    groups = [_group(path) for path, _ in sources]
    first = min((group for group in groups if group is not None), default=None)
    return [
        source
        for (_, source), group in zip(sources, groups, strict=True)
        if group is not None and group == first
    ]


def _find_remote(address: str) -> list[Source]:
    objects = storage.list_s3(address)
    folder_address = address.rstrip("/")
    names = {
        stored_object.address.removeprefix(
            f"{folder_address}/"
        ): f"{stored_object.etag}-{stored_object.num_bytes}"
        for stored_object in objects
    }
    if SPLITS_FILE in names:
        return [
            _remote_dataset(f"{folder_address}/{split}", names, prefix=f"{split}/")
            for split in split_names(folder_address)
        ]
    if DATASET_FILE in names:
        return [_remote_dataset(folder_address, names, prefix="")]
    sources = [
        (
            stored_object.address,
            Source(stored_object.address, etag=f"{stored_object.etag}-{stored_object.num_bytes}"),
        )
        for stored_object in objects
    ]
    exact = [source for source_address, source in sources if source_address == address]
    inside = _of_first_group(
        [(Path(source_address.removeprefix(_S3)), source) for source_address, source in sources]
    )
    if not exact and not inside:
        raise DataError(f"corpus.path: {address}: no such object, and none of {_SHOWN} below it")
    return exact or inside


def _remote_dataset(folder: str, names: dict[str, str], *, prefix: str) -> Source:
    """Return a dataset in a bucket, identified by the ETags of its files of rows."""
    etags = [names.get(prefix + file.rpartition("/")[2], "") for file in arrow_files(folder)]
    return Source(folder, etag=storage.content_key(etags), is_dataset=True)
