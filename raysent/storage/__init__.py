"""Files that one command writes and another reads, on disk or in an S3 bucket.

Writes are atomic: a temporary file beside the target is flushed to disk, then renamed. So a killed process never leaves
half a file. Append-only files are the exception: their reader drops an incomplete last line.

disk.py          errors of the file system, temporary files, the cache folder
object_store.py  objects of any S3 endpoint, and its errors
mirror.py        working folders of s3:// addresses, and their synchronization
names.py         names of users and strangers as names of files
files.py         text, JSON, tensors, arrays; files that machines share
lines.py         append-only files of lines with checksums
lease.py         exclusive access to a run
layout.py        names of the files and folders of a run
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
