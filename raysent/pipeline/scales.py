"""Scales: how the settings of a space are chosen, for text, machine and time, or as somebody published them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from raysent.config import Override
from raysent.errors import ConfigError
from raysent.registry import Registry, by_table
from raysent.sweeps.space import SearchSpace

# `auto` chooses what a space lists under `fit`; the others are found by name in `SCALES`.
SpaceScale: TypeAlias = Literal["auto", "paper"]


class Scale(Protocol):
    """A scale: a value of the table `SCALES` of an entry point of the group `raysent.scales`."""

    def __call__(self, space: SearchSpace, *, data: Path | None) -> list[Override]:
        """Return what the scale sets in a space.

        Args:
            space: The space.
            data: Folder of the files that settings name, such as word vectors.

        Raises:
            ConfigError: If the space has no settings of this scale.
        """


SCALES: Registry[Scale] = Registry("scale", read=by_table("SCALES"))


def scale_overrides(
    space: SearchSpace, scale: str, *, data: str | Path | None = None
) -> list[Override]:
    """Return what a scale sets in a space; nothing at `auto`.

    Args:
        space: The space.
        scale: The scale.
        data: Folder of the files that published settings name, such as word vectors; None for ``data``.

    Raises:
        ConfigError: If the scale is unknown, or the space has no settings of it.
    """
    if scale == "auto":
        return []
    if scale not in SCALES:
        raise ConfigError(
            f"scale {scale}: must be {' or '.join(('auto', *SCALES))}{SCALES.failures}"
        )
    return SCALES[scale](space, data=None if data is None else Path(data))
