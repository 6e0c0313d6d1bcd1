"""Files written whole or not at all: text, JSON, tensors, arrays."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors

from raysent.artifacts.disk import storage_errors, temporary_beside
from raysent.artifacts.mirror import address_of, commit
from raysent.errors import ArtifactError

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
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
    with written_whole(path) as temporary:
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
    with written_whole(path) as temporary:
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
    with written_whole(path) as temporary, temporary.open("wb") as stream:
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
