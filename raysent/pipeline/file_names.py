"""Names of files that functions are given, checked before anything is imported that takes long."""

from __future__ import annotations

from pathlib import Path

from raysent.errors import ConfigError


def check_file(name: str, file: object) -> None:
    """Refuse a table or texts in memory where the name of a file is needed.

    Raises:
        ConfigError: With what it is.
    """
    if file is not None and not isinstance(file, str | Path):
        raise ConfigError(
            f"{name}: must be the name of a file; given a {type(file).__name__}; save it, or give its texts to the "
            "model itself, as load(MODEL).predict(texts)"
        )
