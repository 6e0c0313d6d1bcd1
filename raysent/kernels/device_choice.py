"""Which device is chosen to compute on: this module imports no PyTorch, which takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from raysent.errors import ConfigError

_DEVICES = ("cpu", "cuda")
# What this process was asked to compute on; None for a GPU where there is one.
_chosen: str | None = None


def use_device(name: str | None) -> str | None:
    """Compute on the CPU or on GPUs from now on, in this process and in what it reserves of a Ray cluster.

    Args:
        name: `cpu` or `cuda`; None is a GPU where there is one, else the CPU.

    Returns:
        The name that held before.

    Raises:
        ConfigError: If it is another name.
    """
    global _chosen  # noqa: PLW0603 - of the whole process
    if name not in (None, *_DEVICES):
        raise ConfigError(f"device {name}: must be {' or '.join(_DEVICES)}")
    before = _chosen
    _chosen = name
    return before


@contextmanager
def on_device(name: str | None) -> Iterator[None]:
    """Compute inside the block on the CPU or on GPUs.

    Args:
        name: ``cpu`` or ``cuda``; None for GPUs where there are some.

    Raises:
        ConfigError: If it is another name.
    """
    before = use_device(name)
    try:
        yield
    finally:
        use_device(before)


def chosen_device() -> str | None:
    """Return what `use_device` was called with last."""
    return _chosen


def usable_gpus(count: float) -> float:
    """Return how many of so many GPUs may be used: all, or none where the CPU is chosen."""
    return 0.0 if _chosen == "cpu" else count
