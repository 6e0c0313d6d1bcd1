"""Files that one command writes and another reads, on disk or in an S3 bucket.

Writes are atomic: a temporary file beside the target is flushed to disk, then renamed. So a killed process never leaves
half a file. Append-only files are the exception: their reader drops an incomplete last line.

disk.py          errors of the file system, temporary files, the cache folder
object_store.py  objects of any S3 endpoint, and its errors
mirror.py        working folders of s3:// addresses, and their synchronization
files.py         text, JSON, tensors, arrays
lines.py         append-only files of hashed lines
lease.py         exclusive access to a run
shared.py        files that machines share, without a working copy
layout.py        names of the files and folders of a run
"""

from raysent.storage.disk import cache_folder, flush, storage_errors
from raysent.storage.files import (
    atomic_write,
    content_key,
    file_sha256,
    load_arrays,
    load_tensors,
    read_json,
    save_arrays,
    save_tensors,
    tensor_types,
    whole_file,
    write_json,
    write_text,
)
from raysent.storage.layout import CHECKPOINT_FOLDER, LOCK_FILE
from raysent.storage.lease import Lease, is_locked
from raysent.storage.lines import (
    Checked,
    Damage,
    Lines,
    append_json_line,
    check_lines,
    num_lines,
    read_json_lines,
    write_json_line,
)
from raysent.storage.mirror import address_of, open_folder, refresh, remove, remove_folder, to_uri
from raysent.storage.object_store import RemoteObject, get_content, is_remote, list_s3, s3_errors
from raysent.storage.shared import copy_from_shared, copy_to_shared, create_shared, read_shared, remove_shared

__all__ = [
    "CHECKPOINT_FOLDER",
    "LOCK_FILE",
    "Checked",
    "Damage",
    "Lease",
    "Lines",
    "RemoteObject",
    "address_of",
    "append_json_line",
    "atomic_write",
    "cache_folder",
    "check_lines",
    "content_key",
    "copy_from_shared",
    "copy_to_shared",
    "create_shared",
    "file_sha256",
    "flush",
    "get_content",
    "is_locked",
    "is_remote",
    "list_s3",
    "load_arrays",
    "load_tensors",
    "num_lines",
    "open_folder",
    "read_json",
    "read_json_lines",
    "read_shared",
    "refresh",
    "remove",
    "remove_folder",
    "remove_shared",
    "s3_errors",
    "save_arrays",
    "save_tensors",
    "storage_errors",
    "tensor_types",
    "to_uri",
    "whole_file",
    "write_json",
    "write_json_line",
    "write_text",
]
