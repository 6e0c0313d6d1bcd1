"""The disk's refusals as one clear line each, and where the machine keeps what can be made or fetched again.

Files written whole or not at all: text, JSON, tensors, arrays.

Append-only files: JSON, one value a line.

On a disk each line is flushed before anything acts on it, and a torn last line, left by a killed writer, is dropped.
In a bucket each line is an object of its own, created only where none is: of two writers that think the file theirs,
one is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import safetensors

from raysent.errors import ArtifactError
from raysent.storage.disk import storage_errors, temporary_beside
from raysent.storage.mirror import address_of, commit, line_address, locked
from raysent.storage.object_store import conditional_put

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path; when the block ends well, it becomes `path` in one step, in its bucket first.

    Raises:
        ArtifactError: If the disk is full, the folder cannot be written, the path is a folder's or a device's, or the
            object store refuses.
    """
    if path.is_symlink():
        path = path.resolve()  # the link stays
    if path.exists() and not path.is_file():
        # Renaming onto a device would put a file in its place.
        raise ArtifactError(f"{address_of(path)}: must be a file's name; a folder or a device stands there")
    with storage_errors(address_of(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_beside(path) as temporary:
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.chmod(0o644)
            commit(temporary, path)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON in one step; NaN is refused, never written."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of ours.

    Raises:
        ArtifactError: If it is missing, truncated or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{address_of(path)}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{address_of(path)}: truncated or not JSON ({error}); restore it or run again") from None
    except (NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise ArtifactError(f"{address_of(path)}: cannot be read: {error.strerror}") from None


def save_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write named tensors as safetensors in one step."""
    # Late, with torch: processes that read text wait for neither.
    from safetensors.torch import save_file  # noqa: PLC0415

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as temporary:
        save_file(contiguous, temporary, metadata=metadata)


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read named tensors.

    Raises:
        ArtifactError: If the file is missing, truncated or not safetensors.
    """
    from safetensors.torch import load_file  # noqa: PLC0415  # late as above

    if not path.is_file():
        raise ArtifactError(f"{address_of(path)}: no such file")
    try:
        return load_file(path)
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        raise ArtifactError(
            f"{address_of(path)}: truncated or not safetensors ({error}); restore it or train again"
        ) from None


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write named arrays as one compressed .npz in one step."""
    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read named arrays.

    Raises:
        ArtifactError: If the file is missing or truncated.
    """
    if not path.is_file():
        raise ArtifactError(f"{address_of(path)}: no such file")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except Exception as error:  # zipfile, zlib and numpy each raise their own for a torn file
        raise ArtifactError(f"{address_of(path)}: truncated or not .npz ({error}); evaluate again") from None


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def content_key(*parts: Any) -> str:
    """Return 16 hexadecimal digits that name the parts' content (JSON values or bytes)."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else json.dumps(part, sort_keys=True, ensure_ascii=False).encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:16]


class Lines:
    """An append-only file that one process writes."""

    def __init__(self, path: Path) -> None:
        """Open a file where its last whole line ends; the folder must be there.

        Raises:
            ArtifactError: If it cannot be written.
        """
        self.path = path
        with storage_errors(address_of(path)):
            _cut_torn_line(path)
            path.touch()
            self._num_lines = path.read_bytes().count(b"\n")

    def append(self, value: Any) -> None:
        """Add one line, in its bucket first.

        Raises:
            ArtifactError: If the disk or the object store refuses, or another writer was there first.
        """
        address = line_address(self.path, self._num_lines)
        with contextlib.nullcontext() if address is None else locked(self.path.parent):
            if address is not None and not conditional_put(address, json_line(value).encode()):
                raise ArtifactError(
                    f"{address_of(self.path)}: another process has gone on with this run since; leave it to that one"
                )
            with storage_errors(address_of(self.path)), self.path.open("a", encoding="utf-8") as stream:
                write_json_line(stream, value)
        self._num_lines += 1


def json_line(value: Any) -> str:
    """Return a value as one line; NaN is refused."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def write_json_line(stream: IO[str], value: Any) -> None:
    """Append one event to an open journal and push it to the disk before anything acts on it."""
    stream.write(json_line(value))
    stream.flush()
    os.fsync(stream.fileno())


def append_json_line(path: Path, value: Any) -> None:
    """Add a line to a short file that one process writes, whole and in one step."""
    before = "".join(map(json_line, read_json_lines(path))) if path.exists() else ""
    write_text(path, before + json_line(value))


def read_json_lines(path: Path) -> list[Any]:
    """Read an append-only file; a torn last line, left by a killed writer, is dropped.

    Raises:
        ArtifactError: If it is missing or a line before the last is not JSON.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        raise ArtifactError(f"{address_of(path)}: no such file") from None
    values = []
    complete, torn = lines[:-1], lines[-1]
    for number, line in enumerate(complete, start=1):
        try:
            values.append(json.loads(line))
        except json.JSONDecodeError:
            is_last = number == len(complete) and not torn
            if is_last:
                break
            raise ArtifactError(
                f"{address_of(path)}:{number}: not JSON; the file was changed by something else"
            ) from None
    return values


def _cut_torn_line(path: Path) -> None:
    """Cut what a killed writer left after the last whole line, so that the next one starts a line of its own."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as stream:
            stream.truncate(whole)
