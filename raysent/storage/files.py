"""Files of a run that are written atomically: text, JSON, tensors and arrays; and files that machines share.

Shared files, in a folder that all machines have or in a bucket, are named by paths or ``s3://`` addresses. Unlike those
of a run they have no working copy, and none is ever replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors

from raysent import reading
from raysent.errors import ArtifactError
from raysent.storage.disk import (
    cache_folder,
    flush,
    keep_mode,
    storage_errors,
    temporary_beside,
)
from raysent.storage.mirror import address_of, commit
from raysent.storage.object_store import (
    S3,
    conditional_put,
    delete,
    get_content,
    get_file,
    is_remote,
    put_file,
    split_address,
)

if TYPE_CHECKING:
    import torch

_SEAL = "digest"
# Arrays may unpack to this size, and to so many times their file: labels alone are packed as tightly, and beside them
# are probabilities, which hardly are.
_SMALL_ARRAYS_BYTES = 64 << 20
_MOST_UNPACKED = 64


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` in one step after the block; in a bucket first, if it is in one.

    Raises:
        ArtifactError: If the disk is full, the folder is not writable, the path is a folder or a device, or the object
            store refuses.
    """
    if path.is_symlink():
        path = path.resolve()  # keep the link
    if path.exists() and not path.is_file():
        # A rename would replace a device by a file.
        raise ArtifactError(f"{address_of(path)}: must be a file; it is a folder or a device")
    with storage_errors(address_of(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_beside(path) as temporary:
            allowed = stat.S_IMODE(temporary.stat().st_mode)
            yield temporary
            flush(temporary)
            temporary.chmod(allowed)  # safetensors replaces the file
            keep_mode(temporary, path)
            commit(temporary, path)


@contextlib.contextmanager
def whole_file(name: str | Path) -> Iterator[Path]:
    """Yield a temporary path that becomes the file `name` after the block; in a bucket, by one put and without a copy.

    A file in the working folder of a bucket is `atomic_write`'s.

    Raises:
        ArtifactError: As `atomic_write`.
    """
    if not is_remote(name):
        with atomic_write(Path(name)) as temporary:
            yield temporary
        return
    address = S3 + "/".join(split_address(name))
    uploads = cache_folder() / "uploads"
    with storage_errors(uploads):
        uploads.mkdir(parents=True, exist_ok=True)
        with temporary_beside(uploads / address.rpartition("/")[2]) as temporary:
            yield temporary
            put_file(address, temporary)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, *, sealed: bool = True) -> None:
    """Write a value as indented JSON atomically; a mapping with a hash of its content, which `read_json` checks.

    Args:
        path: The file.
        value: The value.
        sealed: Whether a mapping has the hash; not in a file that other programs read.

    Raises:
        ValueError: If the value contains NaN or infinity.
    """
    if sealed and isinstance(value, Mapping):
        value = with_seal(value)
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, *, sealed: bool = False) -> Any:
    """Read a JSON file that raysent wrote, without its seal, which it must have if `sealed`.

    Raises:
        ArtifactError: If it is missing, truncated, not JSON, beyond the limits of `raysent.reading`, or not as sealed.
    """
    value = reading.read_json(path, name=address_of(path))
    return without_seal(value, name=address_of(path), needs_seal=sealed)


def with_seal(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with a hash of their content, as JSON has them; NaN raises a ValueError."""
    text = json.dumps(values, allow_nan=False)
    return {**values, _SEAL: content_key(reading.parse_json(text))}


def without_seal(value: Any, *, name: str, needs_seal: bool = False) -> Any:
    """Return a value of JSON without its seal; earlier versions wrote some files without.

    Args:
        value: The value.
        name: Where it is from, for the message.
        needs_seal: Whether it must have a seal.

    Raises:
        ArtifactError: If it is not as it was sealed.
    """
    seal = None
    if isinstance(value, dict):
        seal = value.pop(_SEAL, None)
    if (needs_seal or seal is not None) and seal != content_key(value):
        raise ArtifactError(f"{name}: changed since it was written; restore it or run again")
    return value


def save_tensors(
    path: Path,
    tensors: dict[str, torch.Tensor],
    metadata: dict[str, str] | None = None,
    *,
    sealed: bool = False,
) -> None:
    """Write named tensors as safetensors atomically.

    Args:
        path: The file.
        tensors: The tensors.
        metadata: Texts that stand in the file.
        sealed: Whether they have a hash of the tensors, which `load_tensors` checks; where no other file has one.
    """
    # Imported here because it imports torch: processes that only read text start faster without it.
    from safetensors.torch import save_file  # noqa: PLC0415

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if sealed:
        metadata = {**(metadata or {}), _SEAL: _tensors_key(contiguous)}
    with atomic_write(path) as temporary:
        save_file(contiguous, temporary, metadata=metadata)


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read named tensors.

    Raises:
        ArtifactError: If the file is missing, truncated, not safetensors, or not as it was sealed.
    """
    from safetensors.torch import load_file  # noqa: PLC0415  # late as above

    with _tensor_errors(path):
        tensors = load_file(path)
        with safetensors.safe_open(path, framework="numpy") as stream:
            seal = (stream.metadata() or {}).get(_SEAL)
    if seal is not None and seal != _tensors_key(tensors):
        raise ArtifactError(
            f"{address_of(path)}: changed since it was written; restore it or train again"
        )
    return tensors


def _tensors_key(tensors: Mapping[str, torch.Tensor]) -> str:
    parts: list[Any] = []
    for name, tensor in sorted(tensors.items()):
        parts += [name, str(tensor.dtype), list(tensor.shape), tensor.numpy().tobytes()]
    return content_key(*parts)


def tensor_types(path: Path) -> dict[str, dict[str, Any]]:
    """Return type and shape of each tensor of a safetensors file, by name, without reading the values.

    Raises:
        ArtifactError: If the file is missing, truncated or not safetensors.
    """
    with _tensor_errors(path), safetensors.safe_open(path, framework="numpy") as stream:
        slices = {name: stream.get_slice(name) for name in sorted(stream.keys())}
        return {
            name: {"dtype": tensor.get_dtype(), "shape": list(tensor.get_shape())}
            for name, tensor in slices.items()
        }


@contextlib.contextmanager
def _tensor_errors(path: Path) -> Iterator[None]:
    if not path.is_file():
        raise ArtifactError(f"{address_of(path)}: no such file")
    try:
        yield
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ArtifactError(
            f"{address_of(path)}: truncated or not safetensors ({reason}); restore it or train again"
        ) from None


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write named arrays as one compressed .npz atomically."""
    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]


def load_arrays(
    path: Path, *, is_wanted: Callable[[str], bool] = lambda _: True
) -> dict[str, np.ndarray]:
    """Read named arrays; of a large file no more than it can hold, whatever it says of itself.

    Args:
        path: The file.
        is_wanted: Whether an array of this name is read.

    Raises:
        ArtifactError: If the file is missing or truncated, or its arrays are too large for it.
    """
    if not path.is_file():
        raise ArtifactError(f"{address_of(path)}: no such file")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = {name: info for name, info in members.items() if is_wanted(name)}
            _check_sizes(path, wanted.values())
            return {name: _load_array(archive, info) for name, info in wanted.items()}
    except ArtifactError:
        raise
    except Exception as error:
        # zipfile, zlib and numpy raise errors of their own for a truncated file.
        raise ArtifactError(
            f"{address_of(path)}: truncated or not .npz ({error}); evaluate again"
        ) from None


def _check_sizes(path: Path, members: Iterable[zipfile.ZipInfo]) -> None:
    """Refuse an archive that unpacks to far more than its size, as no arrays of ours do but small ones."""
    num_bytes = sum(info.file_size for info in members)
    most_bytes = max(_SMALL_ARRAYS_BYTES, _MOST_UNPACKED * path.stat().st_size)
    if num_bytes > most_bytes:
        raise ArtifactError(
            f"{address_of(path)}: must unpack to at most {most_bytes:,} bytes; its arrays have {num_bytes:,}; is this "
            "another file?"
        )


def _load_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Return an array of an archive, which has the size that its entry says."""
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_2_0
        if version == (1, 0):
            read_header = np.lib.format.read_array_header_1_0
        shape, _, dtype = read_header(stream)
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes != info.file_size - stream.tell():
            raise ValueError(f"{info.filename}: of {num_bytes:,} bytes by its header")
    with archive.open(info) as stream:
        values: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
        return values


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits.

    Raises:
        ArtifactError: If it is gone, as where another command makes its folder again.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        raise ArtifactError(
            f"{address_of(path)}: no such file; if another command makes its folder again, wait for its end, "
            "then give this one again"
        ) from None


def content_key(*parts: Any) -> str:
    """Return a hash of the parts' content (JSON values or bytes), 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, bytes):
            data = part
        else:
            data = json.dumps(part, sort_keys=True, ensure_ascii=False).encode()
        # With its length, so that two parts never have the hash of other two that are cut elsewhere.
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:16]


def read_shared(name: str) -> bytes | None:
    """Return the content of a small file, or None if there is none.

    Raises:
        ArtifactError: If it is damaged, or the object store refuses.
    """
    if is_remote(name):
        content = get_content(name)
        return None if content is None else content.data
    path = Path(name)
    if not path.is_file():
        return None
    return path.read_bytes()


def create_shared(name: str, data: bytes) -> bool:
    """Write a small file that appears whole, and return True; return False if there is one already.

    Raises:
        ArtifactError: If the disk or the object store refuses.
    """
    if is_remote(name):
        return conditional_put(name, data)
    path = Path(name)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_beside(path) as temporary:
            temporary.write_bytes(data)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
    return True


def copy_to_shared(file: Path, name: str) -> None:
    """Copy a file of this machine to a name that no other writer uses.

    Raises:
        ArtifactError: If the disk or the object store refuses.
    """
    if is_remote(name):
        put_file(name, file)
        return
    path = Path(name)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, path)


def copy_from_shared(name: str, file: Path) -> None:
    """Copy a shared file to this machine; a killed copy leaves a part of it.

    Raises:
        ArtifactError: If it is missing or damaged, or the disk or the object store refuses.
    """
    if is_remote(name):
        get_file(name, file)
        return
    with storage_errors(name):
        shutil.copyfile(name, file)


def remove_shared(name: str) -> None:
    """Remove a shared file, if it exists.

    Raises:
        ArtifactError: If the object store refuses.
    """
    if is_remote(name):
        delete(name)
        return
    with contextlib.suppress(FileNotFoundError):
        Path(name).unlink()
