"""Train sentence encoders, search their hyperparameters across a cluster, and combine the best into ensembles.

>>> sweep = raysent.sweep("quick_thoughts", corpus="books/", trials=24)
>>> model = raysent.train("quick_thoughts", corpus="books/")
>>> scores = raysent.evaluate([model, "hash:50"], tasks=["MR", "TREC"])
>>> both = raysent.ensemble([model, "hash:50"], tasks=["TREC"])
>>> student = raysent.distill(both, into="bag").model
>>> vectors = raysent.load("runs/one").encode(["A sentence."])
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from raysent.errors import ArtifactError, ConfigError, DataError, RaysentError, TrainingError

if TYPE_CHECKING:
    from raysent.ensembles import Ensemble
    from raysent.evaluation.task_files import OwnTask as Task
    from raysent.exports import export
    from raysent.models import SentenceModel
    from raysent.models.sentence_encoder import SentenceEncoder
    from raysent.models.vector_codes import VectorCode
    from raysent.pipeline import (
        Sweep,
        SweepPlan,
        components,
        compose,
        distill,
        doctor,
        encode_corpus,
        ensemble,
        evaluate,
        index_vectors,
        load,
        plan,
        reproduce,
        resume,
        sweep,
        track,
        train,
        whiten,
        write_report,
    )
    from raysent.sweeps.space import SearchSpace

__version__ = "0.2.0"

# Where each name is, and its name there if that is another. Imported at the
# first use, so that `import raysent` does not wait for torch and Ray.
_MODULE_OF = {
    "Ensemble": "raysent.ensembles",
    "SearchSpace": "raysent.sweeps.space",
    "SentenceEncoder": "raysent.models.sentence_encoder",
    "SentenceModel": "raysent.models",
    "Task": "raysent.evaluation.task_files:OwnTask",
    "VectorCode": "raysent.models.vector_codes",
    "export": "raysent.exports",
    **dict.fromkeys(
        (
            "Sweep",
            "SweepPlan",
            "components",
            "compose",
            "distill",
            "doctor",
            "encode_corpus",
            "ensemble",
            "evaluate",
            "index_vectors",
            "load",
            "plan",
            "reproduce",
            "resume",
            "sweep",
            "track",
            "train",
            "whiten",
            "write_report",
        ),
        "raysent.pipeline",
    ),
}

__all__ = [
    "ArtifactError",
    "ConfigError",
    "DataError",
    "Ensemble",
    "RaysentError",
    "SearchSpace",
    "SentenceEncoder",
    "SentenceModel",
    "Sweep",
    "SweepPlan",
    "Task",
    "TrainingError",
    "VectorCode",
    "__version__",
    "components",
    "compose",
    "distill",
    "doctor",
    "encode_corpus",
    "ensemble",
    "evaluate",
    "export",
    "index_vectors",
    "load",
    "plan",
    "reproduce",
    "resume",
    "sweep",
    "track",
    "train",
    "whiten",
    "write_report",
]


def _limit_spinning() -> None:
    """Let a thread that waits for the others of a product sleep soon, unless the user has chosen.

    By default it spins for milliseconds. Beside another program that uses the cores it then takes the time of the very
    threads that it waits for: training took 2 to 34 times as long (`benchmarks/busy_cores.py`). Libraries read this
    when they are loaded, so it has no effect where torch or scikit-learn was imported before raysent.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["GOMP_SPINCOUNT"] = "1000"


_limit_spinning()


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, own_name = _MODULE_OF[name].partition(":")
    value = getattr(importlib.import_module(module), own_name or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
