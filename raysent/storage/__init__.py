"""Every file that one command writes and another reads, on a disk or in a bucket.

Writing is atomic (a temporary file beside the target, flushed, then renamed), so a reader or a killed process
never leaves half a file; an append-only file is the one exception, and its reader drops a torn last line.

disk.py          the disk's refusals, and the cache
object_store.py  objects of any S3 endpoint; its refusals
mirror.py        s3:// addresses <-> working folders, kept the same
files.py         files written whole: text, JSON, tensors, arrays
lines.py         append-only files
lease.py         who is at work on a run
"""

from raysent.storage.disk import cache_folder, storage_errors
from raysent.storage.files import (
    Lines,
    _cut_torn_line,
    append_json_line,
    atomic_write,
    content_key,
    file_sha256,
    load_arrays,
    load_tensors,
    read_json,
    read_json_lines,
    save_arrays,
    save_tensors,
    write_json,
    write_json_line,
    write_text,
)
from raysent.storage.layout import CHECKPOINT_FOLDER, LOCK_FILE
from raysent.storage.lease import Lease, is_locked
from raysent.storage.mirror import address_of, open_folder, refresh, remove, remove_folder, to_uri
from raysent.storage.object_store import RemoteObject, is_remote, list_s3, s3_errors

__all__ = [
    "CHECKPOINT_FOLDER",
    "LOCK_FILE",
    "Lease",
    "Lines",
    "RemoteObject",
    "_cut_torn_line",
    "address_of",
    "append_json_line",
    "atomic_write",
    "cache_folder",
    "content_key",
    "file_sha256",
    "is_locked",
    "is_remote",
    "list_s3",
    "load_arrays",
    "load_tensors",
    "open_folder",
    "read_json",
    "read_json_lines",
    "refresh",
    "remove",
    "remove_folder",
    "s3_errors",
    "save_arrays",
    "save_tensors",
    "storage_errors",
    "to_uri",
    "write_json",
    "write_json_line",
    "write_text",
]
