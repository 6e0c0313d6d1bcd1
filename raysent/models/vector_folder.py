"""A folder of vectors of many files: a Parquet file for each file of text, and `vectors.json`, which describes all.

    DIR/vectors.json               the model, the size of a vector, and what else the vectors depend on
    DIR/PLACE/NAME.txt.parquet     columns file, row, text, vector

`file` is the text's file below the folder that was encoded, and `row` its line or row, from 0. `vector` is a list of
fixed size: float32 [dim]; int8 [dim], of which only the direction counts; or packed bits, uint8 [ceil(dim / 8)]. A
Parquet file appears whole, on disk or in ``s3://``; its footer has the version of the text's file, so that a changed
file is found. Each page has a checksum, which is compared whenever the page is read. Files are written and read in
batches of rows.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from raysent.data.text_files import open_bytes, reading_errors
from raysent.errors import ArtifactError, RaysentError
from raysent.models.encoding import Precision
from raysent.reading import parse_json
from raysent.storage import is_remote, list_s3, read_shared, whole_file
from raysent.storage.layout import VECTORS_FILE

_KIND = "raysent-vectors"
_FORMAT_VERSION = 1
_SUFFIX = ".parquet"
# Key of the footer's metadata.
_FOOTER = b"raysent"
_BATCH_ROWS = 8192

_TYPES: dict[Precision, type[np.generic]] = {
    "float32": np.float32,
    "int8": np.int8,
    "ubinary": np.uint8,
}


@dataclass(frozen=True)
class VectorFormat:
    """What all vectors of a folder have in common.

    Attributes:
        model: The model's name.
        model_key: Hash of its content.
        measure: ``cosine``, or ``hamming`` for the bits of a code.
        precision: ``float32``; ``int8``, the direction; or ``ubinary``, eight bits of a code per byte.
        dim: Numbers of a vector, or bits of a code.
        has_text: Whether the column `text` is there.
        options: What else the rows depend on, by the name of the option.
    """

    model: str
    model_key: str
    measure: Literal["cosine", "hamming"]
    precision: Precision
    dim: int
    has_text: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Items of the list of a vector."""
        if self.precision == "ubinary":
            return -(-self.dim // 8)
        return self.dim

    @property
    def dtype(self) -> type[np.generic]:
        """Type of these items."""
        return _TYPES[self.precision]

    def schema(self, version: str, origin: str = "") -> pa.Schema:
        """Return the schema of a Parquet file of the text's file of this version, which is at `origin`."""
        number = pa.field("element", pa.from_numpy_dtype(self.dtype), nullable=False)
        fields = [
            pa.field("file", pa.string(), nullable=False),
            pa.field("row", pa.int64(), nullable=False),
        ]
        if self.has_text:
            fields.append(pa.field("text", pa.string(), nullable=False))
        fields.append(pa.field("vector", pa.list_(number, self.width), nullable=False))
        about = {
            "kind": _KIND,
            "version": _FORMAT_VERSION,
            "source": version,
            "origin": origin,
            "format": self.key,
        }
        return pa.schema(fields, metadata={_FOOTER: json.dumps(about).encode()})

    @property
    def key(self) -> str:
        """What the rows depend on, as text; without the model's name, which a copy of the model changes."""
        return json.dumps({**asdict(self), "model": ""}, sort_keys=True)

    def difference(self, other: VectorFormat) -> str:
        """Return which value another format has in place of this one's; empty if both give equal vectors."""
        if self.model_key != other.model_key and self.model == other.model:
            return f"of the model {self.model}, before it changed"
        if self.model_key != other.model_key:
            return f"of the model {self.model}, not of {other.model}"
        settings = {**asdict(self), **self.options}
        other_settings = {**asdict(other), **other.options}
        # The other's names come first; an option that one of the two lacks counts as None.
        for name in {**other_settings, **settings}:
            if name in ("model", "options"):
                continue
            setting = settings.get(name)
            other_setting = other_settings.get(name)
            if setting != other_setting:
                return f"with {name} = {setting!r}, not {other_setting!r}"
        return ""


@dataclass(frozen=True)
class VectorFile:
    """One Parquet file of a folder.

    Attributes:
        name: The text's file, as in the column `file`.
        num_rows: Its rows.
        source: Version of the text's file that was encoded.
        format: Its `VectorFormat.key`.
        origin: Absolute path or address of the text's file; empty in files of earlier versions.
    """

    name: str
    num_rows: int
    source: str
    format: str
    origin: str = ""


@dataclass(frozen=True)
class VectorBatch:
    """Consecutive rows of one file.

    Attributes:
        file: The text's file.
        first_row: Row of the first of them in that file.
        vectors: [rows, width].
        texts: Their texts; None if the folder has none.
    """

    file: str
    first_row: int
    vectors: np.ndarray
    texts: list[str] | None


class VectorFolder:
    """A folder of vectors, on disk or in ``s3://``."""

    def __init__(self, name: str | Path) -> None:
        """Name a folder; it need not exist.

        Args:
            name: Path or ``s3://`` address.
        """
        self.name = str(name)
        if is_remote(name):
            # A path has lost a slash of the address.
            self.name = "s3://" + self.name.removeprefix("s3:").strip("/")

    @property
    def local(self) -> Path | None:
        """The folder's path; None for one in a bucket."""
        return None if is_remote(self.name) else Path(self.name)

    def path_of(self, file: str) -> str:
        """Return the path or address of the Parquet file of a text's file."""
        return f"{self.name.rstrip('/')}/{file}{_SUFFIX}"

    def name_of(self, path: str) -> str | None:
        """Return the text's file whose Parquet file a path or address, by any link, would be; None for others."""
        folder = self.name
        if not is_remote(path):
            path = os.path.realpath(path)
            folder = os.path.realpath(folder)
        start = folder.rstrip("/") + "/"
        if not (path.startswith(start) and path.endswith(_SUFFIX)):
            return None
        return path.removeprefix(start).removesuffix(_SUFFIX)

    @property
    def _about(self) -> str:
        return f"{self.name.rstrip('/')}/{VECTORS_FILE}"

    def find_format(self) -> VectorFormat | None:
        """Return what the vectors have in common; None if the folder has none.

        Raises:
            ArtifactError: If `vectors.json` is damaged or of another version.
        """
        path = self._about
        content = read_shared(path)
        if content is None:
            return None
        about = _parsed(content, path)
        try:
            if about.pop("kind") != _KIND or about.pop("version") != _FORMAT_VERSION:
                raise KeyError("kind")
            return VectorFormat(**about)
        except (KeyError, TypeError, AttributeError):
            raise ArtifactError(
                f"{path}: not vectors of this version; run 'raysent encode' into another"
            ) from None

    def format(self) -> VectorFormat:
        """Return what the vectors have in common.

        Raises:
            ArtifactError: If the folder has no vectors, or `vectors.json` is damaged.
        """
        vector_format = self.find_format()
        if vector_format is None:
            raise ArtifactError(
                f"{self.name}: must be a folder of vectors; no {VECTORS_FILE} is there; "
                "'raysent index MODEL TEXT -o DIR' writes one"
            )
        return vector_format

    def use(self, format: VectorFormat) -> None:
        """Begin a folder, or check that it has vectors of this format.

        Raises:
            ArtifactError: If it has others, or cannot be written.
        """
        present = self.find_format()
        if present is None:
            about = {"kind": _KIND, "version": _FORMAT_VERSION, **asdict(format)}
            text = json.dumps(about, indent=2, ensure_ascii=False)
            with whole_file(self._about) as temporary:
                temporary.write_text(text + "\n", encoding="utf-8")
            return
        difference = present.difference(format)
        if difference:
            raise ArtifactError(
                f"output {self.name}: holds vectors {difference}; name another folder"
            )

    def files(self) -> list[VectorFile]:
        """Return the files, sorted by name, from their footers alone.

        Raises:
            ArtifactError: If one is damaged, or of another format than the folder.
        """
        key = self.format().key
        files = [self._read_footer(name) for name in self.names()]
        for file in files:
            if file.format != key:
                path = self.path_of(file.name)
                raise ArtifactError(
                    f"{path}: must be as {VECTORS_FILE} says, or one is damaged; encode into another folder"
                )
        return files

    def find_file(self, file: str) -> VectorFile | None:
        """Return a text's file that has been encoded; None if it has not, or its Parquet file is damaged.

        All pages of a local file are read; a bucket compares checksums of its own.
        """
        try:
            vector_file = self._read_footer(file)
            if self.local is None:
                return vector_file
            num_rows = sum(rows.num_rows for rows in self._row_groups(file))
        except ArtifactError:
            return None
        return vector_file if vector_file.num_rows == num_rows else None

    def names(self) -> list[str]:
        """Return the names of all texts' files that have a Parquet file, sorted."""
        if self.local is None:
            start = f"{self.name}/"
            objects = list_s3(start, kind=ArtifactError)
            paths = [bucket_object.address.removeprefix(start) for bucket_object in objects]
        else:
            paths = [
                path.relative_to(self.local).as_posix() for path in self.local.rglob(f"*{_SUFFIX}")
            ]
        names = []
        for path in paths:
            is_hidden = any(part.startswith(".") for part in path.split("/"))
            if path.endswith(_SUFFIX) and not is_hidden:
                names.append(path.removesuffix(_SUFFIX))
        return sorted(names)

    @contextlib.contextmanager
    def writing(
        self, file: str, format: VectorFormat, *, version: str, origin: str = ""
    ) -> Iterator[VectorWriter]:
        """Yield a writer of a file, which appears after the block; not if the block raises.

        Args:
            file: Name of the text's file.
            format: What all vectors have in common.
            version: Version of the text's file.
            origin: Its absolute path or address.

        Raises:
            ArtifactError: If the file cannot be written.
        """
        schema = format.schema(version, origin)
        # Vectors are almost random bits, which no compression makes smaller.
        compression = {name: "zstd" for name in schema.names if name != "vector"}
        dictionary_columns = ["file"]
        if format.precision != "float32":
            # Parquet has no type of a byte: only by a dictionary does one take 8 bits.
            dictionary_columns.append("vector.list.element")
        with (
            whole_file(self.path_of(file)) as temporary,
            parquet.ParquetWriter(
                temporary,
                schema,
                compression=compression,
                use_dictionary=dictionary_columns,
                write_statistics=["file", "row"],
                write_page_checksum=True,
            ) as stream,
        ):
            yield VectorWriter(stream, schema, file)

    def batches(
        self, *, with_text: bool = True, files: Sequence[str] | None = None
    ) -> Iterator[VectorBatch]:
        """Yield all rows, in the order of `files` and of rows; memory holds one batch.

        Args:
            with_text: Whether to read texts, if the folder has any.
            files: Names of files; by default all.

        Raises:
            ArtifactError: If a file is damaged.
        """
        format = self.format()
        with_text = with_text and format.has_text
        columns = ["vector"]
        if with_text:
            columns.append("text")
        if files is None:
            files = self.names()
        for name in files:
            first_row = 0
            with self._opened(name) as opened:
                for batch in opened.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
                    numbers = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
                    vectors = numbers.reshape(batch.num_rows, format.width)
                    texts = batch.column("text").to_pylist() if with_text else None
                    yield VectorBatch(name, first_row, vectors, texts)
                    first_row += batch.num_rows
                if first_row != opened.metadata.num_rows:
                    raise ArtifactError(
                        f"must have {opened.metadata.num_rows:,} rows; given {first_row:,}"
                    )

    def texts(self, file: VectorFile, rows: Sequence[int]) -> list[str]:
        """Return the texts of some rows of a file; reads only the groups of rows that they are in.

        Raises:
            ArtifactError: If the file is damaged, or was encoded again since `files` returned it.
        """
        with self._opened(file.name) as opened:
            if self._described(opened, file.name) == file:
                return _texts_of_rows(opened, rows)
        raise ArtifactError(
            f"{self.path_of(file.name)}: must be as it was opened; it was encoded again; open it again"
        )

    def _row_groups(self, file: str) -> Iterator[pa.Table]:
        with self._opened(file) as opened:
            for group in range(opened.num_row_groups):
                yield opened.read_row_group(group, use_threads=False)

    def _read_footer(self, file: str) -> VectorFile:
        with self._opened(file) as opened:
            return self._described(opened, file)

    def _described(self, opened: parquet.ParquetFile, file: str) -> VectorFile:
        metadata = opened.schema_arrow.metadata or {}
        about = _parsed(metadata.get(_FOOTER, b"{}"), self.path_of(file))
        try:
            vector_file = VectorFile(
                name=file,
                num_rows=opened.metadata.num_rows,
                source=about["source"],
                format=about["format"],
                origin=about.get("origin", ""),
            )
            vector_format = VectorFormat(**parse_json(vector_file.format))
            expected = vector_format.schema(vector_file.source)
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"without a description of its vectors: {error}") from None
        if not opened.schema_arrow.equals(expected):
            raise ArtifactError("with other columns than it describes")
        return vector_file

    @contextlib.contextmanager
    def _opened(self, file: str) -> Iterator[parquet.ParquetFile]:
        path = self.path_of(file)
        try:
            with reading_errors(path), open_bytes(path) as stream:
                yield parquet.ParquetFile(stream, page_checksum_verification=True, pre_buffer=False)
        except (pa.ArrowException, UnicodeDecodeError, RaysentError) as error:
            reason = " ".join(str(error).split())[:100]
            raise ArtifactError(
                f"{path}: not vectors, or damaged ({reason}); run 'raysent encode' again"
            ) from None


class VectorWriter:
    """Writes the rows of one file; each call of `write` makes a row group."""

    def __init__(self, stream: parquet.ParquetWriter, schema: pa.Schema, file: str) -> None:
        self._stream = stream
        self._schema = schema
        self._file = file
        self.num_rows = 0

    def write(self, vectors: np.ndarray, texts: Sequence[str]) -> None:
        """Add rows.

        Args:
            vectors: [rows, width], of the format's type.
            texts: Their texts [rows]; left out if the folder has none.
        """
        if not len(vectors):
            return
        columns = {
            "file": pa.array([self._file] * len(vectors), pa.string()),
            "row": pa.array(np.arange(self.num_rows, self.num_rows + len(vectors))),
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.array(vectors.reshape(-1)), type=self._schema.field("vector").type
            ),
        }
        if "text" in self._schema.names:
            columns["text"] = pa.array(texts, pa.string())
        in_order = [columns[name] for name in self._schema.names]
        self._stream.write_batch(
            pa.record_batch(in_order, schema=self._schema), row_group_size=len(vectors)
        )
        self.num_rows += len(vectors)


def _texts_of_rows(opened: parquet.ParquetFile, rows: Sequence[int]) -> list[str]:
    """Return the texts of rows, from the groups that they are in, each of which is read once."""
    group_sizes = [
        opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)
    ]
    group_starts = np.cumsum([0, *group_sizes])
    row_groups = np.searchsorted(group_starts, rows, side="right") - 1
    group_texts = {
        group: opened.read_row_group(group, columns=["text"])["text"]
        for group in set(row_groups.tolist())
    }
    return [
        group_texts[group][row - int(group_starts[group])].as_py()
        for group, row in zip(row_groups, rows, strict=True)
    ]


def _parsed(content: bytes, path: str) -> dict[str, Any]:
    """Return a JSON object."""
    try:
        about = parse_json(content)
    except ValueError as error:
        raise ArtifactError(f"{path}: must be JSON ({error}); remove it and encode again") from None
    if not isinstance(about, dict):
        raise ArtifactError(f"{path}: must hold a JSON object; remove it and encode again")
    return about
