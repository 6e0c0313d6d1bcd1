"""Several processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workers:
    """This process among those that train one model."""

    rank: int = 0
    world_size: int = 1
