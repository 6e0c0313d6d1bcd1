"""Train sentence encoders, search their hyperparameters across a cluster, and combine the best into ensembles.

>>> sweep = raysent.sweep("quick_thoughts", corpus="books/", trials=24)
>>> model = raysent.train("quick_thoughts", corpus="books/")
>>> scores = raysent.evaluate([model, "hash:50"], tasks=["MR", "TREC"])
>>> both = raysent.ensemble([model, "hash:50"], tasks=["TREC"])
>>> student = raysent.distill(both, into="bag").model
>>> vectors = raysent.load("runs/one").encode(["A sentence."])
"""

from __future__ import annotations

import os
import typing

import lazy_loader

__version__ = "0.2.0"

# The public names are listed in `_core.pyi` and imported at the first use, so that `import raysent` does not wait for
# torch and Ray. Those of wings are entry points of the group `raysent.api`; `__init__.pyi` has all for type checkers.
_FOLDER = os.path.dirname(__file__)  # noqa: PTH120 - pathlib takes longer than the rest of this file
_core_name, _, _CORE_NAMES = lazy_loader.attach_stub(__name__, f"{_FOLDER}/_core.pyi")


def _wing_points() -> dict[str, typing.Any]:
    """Return the entry points of the wings that are there, by the public name that each defines."""
    from importlib import metadata  # noqa: PLC0415 - only names of wings need it

    points = metadata.entry_points(group=f"{__name__}.api")
    folders = set(os.listdir(_FOLDER))  # noqa: PTH208 - as above
    return {point.name: point for point in points if point.module.split(".")[1] in folders}


def __getattr__(name: str) -> typing.Any:
    if name in _CORE_NAMES:
        return _core_name(name)
    if name == "__all__":
        return sorted({*_CORE_NAMES, *_wing_points(), "__version__"})
    point = None if name.startswith("_") else _wing_points().get(name)
    if point is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = point.load()
    return globals()[name]


def __dir__() -> list[str]:
    return [*__getattr__("__all__")]


# A thread that waits for the others of a product sleeps soon, unless the user has chosen. By default it spins for
# milliseconds. Beside another program that uses the cores it then takes the time of the very threads that it waits for:
# training took 2 to 34 times as long (`benchmarks/results/speed.md`). Libraries read this when they are loaded, so it
# has no effect where torch or scikit-learn was imported before raysent.
if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
    os.environ["GOMP_SPINCOUNT"] = "1000"
