"""Objects in an S3 bucket: list, get, put, put conditionally, delete. Credentials come from boto3's own chain.

The endpoint is set by ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL`` or boto3's configuration, as for every AWS tool.
Every uploaded object carries the SHA-256 of its content, which is verified on download.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import io
import os
import time
import uuid
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from raysent.errors import ArtifactError, ConfigError, DataError, RaysentError

S3 = "s3://"

# About ten seconds in total, with exponential backoff.
MAX_ATTEMPTS = 6

# A request without an answer is repeated after this time, up to MAX_ATTEMPTS; a slow transfer answers all the while.
_CONNECT_S = 5
READ_S = 10

# Larger files are uploaded in parts of this size.
_PART_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20
_HASH = "sha256"
_WRITER = "writer"
_EXISTS = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
_ABSENT = ("NoSuchKey", "404", "NotFound")
_REFUSALS = {
    "NoSuchBucket": "no such bucket; create it first or name another",
    "AccessDenied": "the credentials that boto3 finds have no permission; grant them access or use others",
    "InvalidAccessKeyId": "the object store does not know the credentials that boto3 finds; use others",
    "SignatureDoesNotMatch": "the object store refuses the credentials that boto3 finds; use others",
    "ExpiredToken": "the credentials that boto3 finds have expired; renew them",
}
_REFUSALS |= {"403": _REFUSALS["AccessDenied"]}
# What a store says that has too much to do.
_BUSY = ("SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "ServiceUnavailable")
_REASON_LENGTH = 200
# What every store says of an object that it has, takes or gives.
_ETAG_CALLS = ("GetObject", "HeadObject", "PutObject")


class RemoteObject(NamedTuple):
    """One object in a bucket: its ``s3://`` address, its ETag and its size."""

    address: str
    etag: str
    num_bytes: int


class ObjectContent(NamedTuple):
    """The content of a small object, its ETag, and its age in seconds by the clock of the object store."""

    data: bytes
    etag: str
    age_s: float


def is_remote(name: str | Path) -> bool:
    """Return whether a name is an ``s3://`` address; a `Path` of one has lost a slash."""
    return str(name).startswith("s3:/")


def split_address(address: str | Path) -> tuple[str, str]:
    """Return the bucket and the key of an ``s3://`` address.

    Raises:
        ConfigError: If it does not name both.
    """
    bucket, _, key = str(address).removeprefix("s3:").strip("/").partition("/")
    if not bucket or not key or any(part in ("", ".", "..") for part in key.split("/")):
        raise ConfigError(
            f"{address}: must name a bucket and a folder in it, as in {S3}bucket/runs/first"
        )
    return bucket, key


def list_s3(
    address: str, *, kind: type[RaysentError] = DataError, after: str = ""
) -> list[RemoteObject]:
    """Return the objects at `address` and below it, sorted by address.

    Args:
        address: An ``s3://`` address.
        kind: Class of the error to raise.
        after: Only objects whose addresses come after this one; empty for all.

    Raises:
        RaysentError: If the bucket is missing or not readable.
    """
    bucket, _, prefix = address.removeprefix(S3).partition("/")
    with s3_errors(address, kind=kind):
        begin = {}
        if after:
            begin["StartAfter"] = after.removeprefix(f"{S3}{bucket}/")
        pages = (
            s3_client()
            .get_paginator("list_objects_v2")
            .paginate(Bucket=bucket, Prefix=prefix, **begin)
        )
        listed_objects = [item for page in pages for item in page.get("Contents", [])]
    # What is below `a/b` begins with `a/b/`, which `a/bc` does not.
    folder = prefix
    if prefix and not prefix.endswith("/"):
        folder = prefix + "/"
    return sorted(
        RemoteObject(f"{S3}{bucket}/{stored['Key']}", stored["ETag"].strip('"'), stored["Size"])
        for stored in listed_objects
        if stored["Key"] == prefix or stored["Key"].startswith(folder)
    )


def put_file(address: str, file: Path) -> None:
    """Upload a file; the object appears whole or not at all.

    Raises:
        ArtifactError: If the object store refuses.
    """
    import boto3.s3.transfer  # noqa: PLC0415 - a third of a second that only a remote path needs

    bucket, key = split_address(address)
    with file.open("rb") as stream:
        metadata = {_HASH: hashlib.file_digest(stream, "sha256").hexdigest()}
        stream.seek(0)
        with s3_errors(address):
            if file.stat().st_size < _PART_BYTES:
                s3_client().put_object(Bucket=bucket, Key=key, Body=stream, Metadata=metadata)
            else:
                parts = boto3.s3.transfer.TransferConfig(
                    _PART_BYTES, multipart_chunksize=_PART_BYTES
                )
                s3_client().upload_fileobj(
                    stream, bucket, key, ExtraArgs={"Metadata": metadata}, Config=parts
                )


def conditional_put(address: str, data: bytes, *, replaces: str = "", writer: str = "") -> bool:
    """Upload a small object on condition that none exists, or that it replaces a known one (compare-and-swap).

    Args:
        address: Address of the object.
        data: Its content.
        replaces: ETag of the object to replace; empty if there must be none.
        writer: Id of the only one who writes this content; empty for this call. A call without an answer may have
            written all the same, also later on: the same writer finds its content, and so calls again.

    Returns:
        Whether the object was written.

    Raises:
        ArtifactError: If the object store refuses for another reason.
    """
    import botocore.exceptions  # noqa: PLC0415 - as above

    bucket, key = split_address(address)
    # A request that is retried after its response was lost finds its own object: the writer's id identifies it.
    writer = writer or uuid.uuid4().hex
    if replaces:
        condition = {"IfMatch": f'"{replaces}"'}
        unmet: tuple[str, ...] = (*_EXISTS, *_ABSENT)
    else:
        condition = {"IfNoneMatch": "*"}
        unmet = _EXISTS
    metadata = {_HASH: hashlib.sha256(data).hexdigest(), _WRITER: writer}
    with s3_errors(address):
        try:
            s3_client().put_object(
                Bucket=bucket, Key=key, Body=data, Metadata=metadata, **condition
            )
        except botocore.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in unmet:
                raise
            existing = _unless_absent(s3_client().head_object, address)
            return existing is not None and metadata.items() <= existing["Metadata"].items()
    return True


def get_file(address: str, file: Path, *, is_checked: bool = True) -> None:
    """Download an object into a file.

    Args:
        address: Address of the object.
        file: The file to write.
        is_checked: Whether to verify the content's SHA-256.

    Raises:
        ArtifactError: If it is missing or damaged, or the object store refuses.
    """
    with s3_errors(address), file.open("wb") as stream:
        description, digest = _download(address, stream)
    if is_checked:
        _check_whole(address, description, digest)


def get_content(address: str) -> ObjectContent | None:
    """Return a small object, or None if there is none.

    Raises:
        ArtifactError: If it is damaged, or the object store refuses.
    """
    stream = io.BytesIO()
    with s3_errors(address):
        downloaded = _unless_absent(lambda **_: _download(address, stream), address)
    if downloaded is None:
        return None
    description, digest = downloaded
    _check_whole(address, description, digest)
    now = email.utils.parsedate_to_datetime(description["ResponseMetadata"]["HTTPHeaders"]["date"])
    age_s = (now - description["LastModified"]).total_seconds()
    return ObjectContent(stream.getvalue(), description["ETag"].strip('"'), age_s)


def _download(address: str, stream: BinaryIO) -> tuple[Any, str]:
    """Write an object into an empty stream; return its description and the SHA-256 of what came.

    boto3 repeats a request that fails, but not one whose content ends too early.
    """
    bucket, key = split_address(address)
    for attempt in range(MAX_ATTEMPTS):
        response = s3_client().get_object(Bucket=bucket, Key=key)
        digest = hashlib.sha256()
        stream.seek(0)
        stream.truncate()
        try:
            for block in response["Body"].iter_chunks(_BLOCK_BYTES):
                digest.update(block)
                stream.write(block)
            break
        except _broken_transfers():
            if attempt == MAX_ATTEMPTS - 1:
                raise
            time.sleep(0.1 * 2**attempt)
    return response, digest.hexdigest()


def _broken_transfers() -> tuple[type[Exception], ...]:
    """Return the classes of errors of a connection that does not begin, is silent, or ends too early."""
    import botocore.exceptions  # noqa: PLC0415 - as above

    return (
        botocore.exceptions.EndpointConnectionError,
        botocore.exceptions.HTTPClientError,
        botocore.exceptions.IncompleteReadError,
    )


def exists(address: str) -> bool:
    """Return whether there is an object at this address.

    Raises:
        ArtifactError: If the object store refuses.
    """
    with s3_errors(address):
        return _unless_absent(s3_client().head_object, address) is not None


def delete(address: str) -> None:
    """Delete an object, if it exists.

    Raises:
        ArtifactError: If the object store refuses.
    """
    bucket, key = split_address(address)
    with s3_errors(address):
        s3_client().delete_object(Bucket=bucket, Key=key)


def has_content(item: RemoteObject, file: Path) -> bool:
    """Return whether a local file has the size and the ETag of an object, or its SHA-256."""
    if not file.is_file() or file.stat().st_size != item.num_bytes:
        return False
    with file.open("rb") as stream:
        md5 = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
        if item.etag == md5.hexdigest():
            return True
        stream.seek(0)
        return has_hash(item.address, hashlib.file_digest(stream, "sha256").hexdigest())


def has_hash(address: str, sha256: str) -> bool:
    """Return whether an object carries this SHA-256; encrypted by KMS or uploaded in parts, its ETag is no MD5."""
    with s3_errors(address):
        description = _unless_absent(s3_client().head_object, address)
    return description is not None and description["Metadata"].get(_HASH) == sha256


def endpoint() -> str:
    """Return the host of the object store, and its port if one is configured."""
    return str(s3_client().meta.endpoint_url).partition("://")[2].strip("/")


def s3_client() -> Any:
    """Return the client of this process."""
    return _client(
        os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "",
        os.getpid(),
    )


@lru_cache(maxsize=4)
def _client(endpoint_url: str, process: int) -> Any:
    import boto3  # noqa: PLC0415 - a third of a second that only a remote path needs
    import botocore.config  # noqa: PLC0415 - as above

    del endpoint_url, process  # cache keys; boto3 reads the endpoint itself
    config = botocore.config.Config(
        retries={"mode": "standard", "max_attempts": MAX_ATTEMPTS},
        connect_timeout=_CONNECT_S,
        read_timeout=READ_S,
        max_pool_connections=32,
    )
    client = boto3.session.Session().client("s3", config=config)
    client.meta.events.register("needs-retry.s3.PutObject", _until_repeated)
    for call in _ETAG_CALLS:
        client.meta.events.register(f"after-call.s3.{call}", _check_answer)
    return client


def _check_answer(parsed: Any, http_response: Any, **_: Any) -> None:
    """Refuse the answer of what is no object store, such as the page of a network that asks for a password."""
    import botocore.parsers  # noqa: PLC0415 - as above

    if http_response.status_code == 200 and "ETag" not in parsed:
        raise botocore.parsers.ResponseParserError("an answer without an ETag")


def _until_repeated(response: Any, attempts: int, **_: Any) -> float | None:
    """Return the seconds until a request is repeated that met another one about the same object, as S3 asks for."""
    is_conflict = response is not None and response[0].status_code == 409
    if not is_conflict or attempts >= MAX_ATTEMPTS:
        return None
    delay_s: float = 0.1 * 2**attempts
    return delay_s


def _unless_absent(request: Callable[..., Any], address: str) -> Any:
    import botocore.exceptions  # noqa: PLC0415 - as above

    bucket, key = split_address(address)
    try:
        return request(Bucket=bucket, Key=key)
    except botocore.exceptions.ClientError as error:
        if error.response["Error"]["Code"] in _ABSENT:
            return None
        raise


def _check_whole(address: str, description: Any, sha256: str) -> None:
    if description["Metadata"].get(_HASH, sha256) != sha256:
        raise ArtifactError(
            f"{address}: damaged: its SHA-256 differs from what was written; restore it or remove it"
        )


@contextlib.contextmanager
def s3_errors(address: str, *, kind: type[RaysentError] = ArtifactError) -> Iterator[None]:
    """Turn errors of the object store inside the block into one line about `address`.

    Raises:
        RaysentError: Of class `kind`.
    """
    import botocore.exceptions  # noqa: PLC0415 - as above
    import botocore.parsers  # noqa: PLC0415 - as above

    try:
        yield
    except botocore.exceptions.BotoCoreError as error:
        reason = " ".join(str(error).split())
        text = f"the object store cannot be used: {reason}; check the configuration of boto3"
        if isinstance(error, botocore.exceptions.NoCredentialsError):
            text = "boto3 finds no credentials; set AWS_PROFILE or AWS_ACCESS_KEY_ID"
        elif isinstance(error, _broken_transfers()):
            text = f"the object store does not answer: {reason}; see AWS_ENDPOINT_URL_S3"
        raise kind(f"{address}: {text}") from error
    except botocore.parsers.ResponseParserError as error:
        raise kind(
            f"{address}: what answers is no object store; see AWS_ENDPOINT_URL_S3 and the network"
        ) from error
    except botocore.exceptions.ClientError as error:
        raise kind(f"{address}: {_refusal(error.response)}") from error


def _refusal(response: Any) -> str:
    """Return what an object store's error means, and what to do about it."""
    code = str(response["Error"].get("Code", ""))
    if code in _REFUSALS:
        return _REFUSALS[code]
    reason = " ".join(f"{code} {response['Error'].get('Message', '')}".split())[:_REASON_LENGTH]
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= 500 or code in _BUSY:
        return f"the object store fails: {reason}; give the same command again later"
    return f"the object store refuses: {reason}; check the address and what it allows"
