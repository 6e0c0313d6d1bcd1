"""The cache that all tests share, and caches of a test's own, which share its kernels."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Where the processes of a run have their cache; what else `RAYSENT_CACHE` names is a test's own.
_VARIABLE = "RAYSENT_TESTS_CACHE"


def share_cache(folder: Path) -> None:
    """Let all tests use a cache, which has a small corpus `docs`: documentation takes half a minute to extract."""
    from raysent.data.corpus import (
        embedded,
    )  # imports numpy, which reads the environment that conftest.py sets

    (folder / "compiled").mkdir(parents=True, exist_ok=True, mode=0o700)
    os.environ["RAYSENT_CACHE"] = os.environ[_VARIABLE] = str(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            embedded,
            "extract",
            lambda libraries: _documents(list(libraries)[:8], embedded.DocsDocument),
        )
        embedded.docs_file()


def own_cache(folder: Path) -> str:
    """Return the name of a cache that shares nothing but kernels: to build them takes ten seconds in each cache."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "compiled").exists():
        (folder / "compiled").symlink_to(Path(os.environ[_VARIABLE]) / "compiled")
    return str(folder)


def _documents(libraries: list[str], document: Any) -> Iterator[Any]:
    """Yield documents of libraries, whose words say which is which."""
    draw, common = random.Random(0), [f"word{number}" for number in range(300)]
    for library in libraries:
        own = [f"{library.replace('-', '')}{number}" for number in range(60)]
        for module in range(15):
            lines = [
                " ".join([*draw.choices(common, k=7), *draw.choices(own, k=2)]) for _ in range(40)
            ]
            yield document(library, f"{library}.module{module}", [f"The {line}." for line in lines])
