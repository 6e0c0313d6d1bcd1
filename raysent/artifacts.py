"""Every file that one command writes and another reads.

Writing is atomic (a temporary file beside the target, flushed, then renamed), so a reader or a killed process
never leaves half a file; an append-only file is the one exception, and its reader drops a torn last line.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file, save_file

from raysent.errors import ArtifactError, DataError


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path; when the block ends well, it becomes `path` in one step.

    Raises:
        ArtifactError: If the disk is full, the folder cannot be written, or the path is a folder's or a device's.
    """
    if path.is_symlink():
        path = path.resolve()  # the link stays
    if path.exists() and not path.is_file():
        # Renaming onto a device would put a file in its place.
        raise ArtifactError(f"{path}: must be a file's name; a folder or a device stands there")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Turn the operating system's refusals inside the block into one clear line about `path`."""
    try:
        yield
    except OSError as error:
        # NumPy tells a short write in words alone.
        is_short = error.errno is None and "requested and" in str(error)
        if is_short or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ArtifactError(f"{path}: the disk is full; free some space or name another folder") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOENT, errno.ENAMETOOLONG):
            raise ArtifactError(f"{path}: may not be written here; name another folder") from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
            raise ArtifactError(f"{path}: a file stands where a folder is needed, or the reverse") from error
        raise
    except safetensors.SafetensorError as error:
        if "No space left" in str(error):
            raise ArtifactError(f"{path}: the disk is full; free some space or name another folder") from error
        raise


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
        raise ArtifactError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: truncated or not JSON ({error}); restore it or run again") from None
    except (NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from None


def append_json_line(stream: IO[str], value: Any) -> None:
    """Append one event to an open journal and push it to the disk before anything acts on it."""
    stream.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
    stream.flush()
    os.fsync(stream.fileno())


def read_json_lines(path: Path) -> list[Any]:
    """Read an append-only file; a torn last line, left by a killed writer, is dropped.

    Raises:
        ArtifactError: If it is missing or a line before the last is not JSON.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such file") from None
    values = []
    complete, torn = lines[:-1], lines[-1]
    for number, line in enumerate(complete, start=1):
        try:
            values.append(json.loads(line))
        except json.JSONDecodeError:
            is_last = number == len(complete) and not torn
            if is_last:
                break
            raise ArtifactError(f"{path}:{number}: not JSON; the file was changed by something else") from None
    return values


def cut_torn_line(path: Path) -> None:
    """Cut what a killed writer left after the last whole line, so that the next one starts a line of its own."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as stream:
            stream.truncate(whole)


def save_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write named tensors as safetensors in one step."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with written_whole(path) as temporary:
        save_file(contiguous, temporary, metadata=metadata)


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read named tensors.

    Raises:
        ArtifactError: If the file is missing, truncated or not safetensors.
    """
    if not path.is_file():
        raise ArtifactError(f"{path}: no such file")
    try:
        return load_file(path)
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        raise ArtifactError(f"{path}: truncated or not safetensors ({error}); restore it or train again") from None


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
        raise ArtifactError(f"{path}: no such file")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except Exception as error:  # zipfile, zlib and numpy each raise their own for a torn file
        raise ArtifactError(f"{path}: truncated or not .npz ({error}); evaluate again") from None


def content_key(*parts: Any) -> str:
    """Return 16 hexadecimal digits that name the parts' content (JSON values or bytes)."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else json.dumps(part, sort_keys=True, ensure_ascii=False).encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:16]


class RemoteObject(NamedTuple):
    """One object in a bucket: its ``s3://`` address, what names its content, and its size."""

    address: str
    etag: str
    num_bytes: int


def list_s3(address: str) -> list[RemoteObject]:
    """Return the objects whose address is `address` or lies below it, by name.

    Raises:
        DataError: If the bucket is missing or may not be read.
    """
    import boto3  # noqa: PLC0415 - a third of a second that only a remote path needs

    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    with s3_errors(address):
        pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        listed = [item for page in pages for item in page.get("Contents", [])]
    folder = prefix if prefix.endswith("/") or not prefix else prefix + "/"
    return sorted(
        RemoteObject(f"s3://{bucket}/{item['Key']}", item["ETag"].strip('"'), item["Size"])
        for item in listed
        if item["Key"] == prefix or item["Key"].startswith(folder)
    )


@contextlib.contextmanager
def s3_errors(address: str) -> Iterator[None]:
    """Turn the object store's refusals inside the block into one clear line about `address`."""
    import botocore.exceptions  # noqa: PLC0415 - as above

    try:
        yield
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{address}: cannot be read from the object store: {reason}") from error
