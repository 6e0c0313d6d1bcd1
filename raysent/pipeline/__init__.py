"""The public API: what the commands do, as functions, and `Sweep`, the result of a sweep.

    sweep -> evaluate the best trials -> combine them -> write a report

Each function takes names, paths and plain values, checks them before anything starts, and returns one object. A wrong
value raises a `RaysentError` with one line. Progress goes to standard error; `progress=False` turns it off.

results.py          what the functions return: a plan, a trained run, a sweep with its trials, models, scores and report
arguments.py        what the functions are given, read and checked: a space, overrides, tasks, a folder
loading.py          `load`: what a folder holds. It imports nothing that only training or searching needs
sweeps.py           sweeps: planned, run, resumed and checked
tracking.py         `track`: the trials and scores of a sweep to trackers
training.py         training of one run: of a space, or of a finished trial again
distillation.py     `distill`: one model learns what another, or an ensemble, returns
whitening.py        `whiten`: a finished model with whitened vectors, whose dimension a validation score may choose
vectors.py          models put side by side, files and corpora encoded, and vectors indexed
evaluation.py       models evaluated on tasks, with all labels or few, and combined into ensembles
papers.py           the tables of the papers, reproduced or planned
component_table.py  what is installed: encoders, objectives, samplers and all else that a registry knows
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysent.pipeline.arguments import (
        Space,
        SpaceScale,
        default_run_folder,
        metric_values,
        print_remarks,
        scale_overrides,
    )
    from raysent.pipeline.component_table import components, registries
    from raysent.pipeline.distillation import distill, train_student
    from raysent.pipeline.evaluation import ensemble, evaluate, evaluate_models, label_curves, map_jobs, scores_folder
    from raysent.pipeline.loading import load
    from raysent.pipeline.papers import plan_reproduction, reproduce
    from raysent.pipeline.results import (
        Distilled,
        RunHealth,
        Sweep,
        SweepEvaluation,
        SweepPlan,
        TrainedRun,
        scores_frame,
        write_report,
    )
    from raysent.pipeline.sweeps import doctor, plan, resume, sweep
    from raysent.pipeline.tracking import track
    from raysent.pipeline.training import train, train_space, train_trial, trial_of
    from raysent.pipeline.vectors import compose, encode_corpus, encode_file, index_vectors
    from raysent.pipeline.whitening import Whitened, whiten

# The names of each module, which is imported at the first use of one of them: who loads a model does not wait for Ray.
_NAMES = {
    "arguments": ["Space", "SpaceScale", "default_run_folder", "metric_values", "print_remarks", "scale_overrides"],
    "component_table": ["components", "registries"],
    "distillation": ["distill", "train_student"],
    "evaluation": ["ensemble", "evaluate", "evaluate_models", "label_curves", "map_jobs", "scores_folder"],
    "loading": ["load"],
    "papers": ["plan_reproduction", "reproduce"],
    "results": [
        "Distilled",
        "RunHealth",
        "Sweep",
        "SweepEvaluation",
        "SweepPlan",
        "TrainedRun",
        "scores_frame",
        "write_report",
    ],
    "sweeps": ["doctor", "plan", "resume", "sweep"],
    "tracking": ["track"],
    "training": ["train", "train_space", "train_trial", "trial_of"],
    "vectors": ["compose", "encode_corpus", "encode_file", "index_vectors"],
    "whitening": ["Whitened", "whiten"],
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Distilled",
    "RunHealth",
    "Space",
    "SpaceScale",
    "Sweep",
    "SweepEvaluation",
    "SweepPlan",
    "TrainedRun",
    "Whitened",
    "components",
    "compose",
    "default_run_folder",
    "distill",
    "doctor",
    "encode_corpus",
    "encode_file",
    "ensemble",
    "evaluate",
    "evaluate_models",
    "index_vectors",
    "label_curves",
    "load",
    "map_jobs",
    "metric_values",
    "plan",
    "plan_reproduction",
    "print_remarks",
    "registries",
    "reproduce",
    "resume",
    "scale_overrides",
    "scores_folder",
    "scores_frame",
    "sweep",
    "track",
    "train",
    "train_space",
    "train_student",
    "train_trial",
    "trial_of",
    "whiten",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import a name at its first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
