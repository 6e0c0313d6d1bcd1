"""What Ray's native code writes to standard error, past Python's own: it says there what its exceptions leave out."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator

# How it names a token that is missing or wrong, over and over.
REFUSED_TOKEN = "InvalidAuthToken"
_MAX_SAID_BYTES = 100_000


@contextlib.contextmanager
def overheard() -> Iterator[Callable[[], str]]:
    """Keep what is written to standard error inside the block from the screen; yields a way to read it."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        screen = os.dup(2)
        os.dup2(kept.fileno(), 2)

        def said() -> str:
            return os.pread(kept.fileno(), _MAX_SAID_BYTES, 0).decode(errors="replace")

        try:
            yield said
        finally:
            os.dup2(screen, 2)
            os.close(screen)
