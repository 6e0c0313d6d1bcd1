"""A record: one model, one task, everything that was found. In: a probe's result. Out: two files, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from raysent import __version__
from raysent.errors import ArtifactError
from raysent.evaluation.probes.results import FoldResult, Probe, ProbeResult, score_interval
from raysent.evaluation.protocols import PROTOCOLS
from raysent.evaluation.tasks import TaskData
from raysent.storage import load_arrays, read_json, remove, save_arrays, write_json

KIND = "raysent evaluation"
# Whose versions figures may depend on.
LIBRARIES = ("numpy", "scipy", "scikit-learn", "torch")
PLAIN = ("model", "model_key", "task", "kind", "protocol", "row_hash", "key", "validation", "test", "measures")


@dataclass(frozen=True)
class Record:
    """A model's outcome on a task.

    Attributes:
        model: The member's name.
        model_key: Names the model's content.
        task: The task's name.
        kind: How features are made of its sentences, see `TaskData`.
        protocol: How it was judged.
        label_names: The classes' names [classes].
        row_hash: Names the rows' content.
        key: Names model, rows, protocol and settings together.
        labels: The rows' classes, int64 [rows].
        scores: Of scored pairs, the rows' scores, float64 [rows]; else empty.
        validation: Percent right, or of scored pairs Pearson's correlation times 100, on rows that chose.
        test: The same on rows that chose nothing.
        measures: Further figures of the test rows by name.
        folds: Log-probabilities per outer fold.
        probe: Fitted on all rows that may train.
        about: Settings, 95 % interval of `test`, versions, seconds, and the model's costs.
    """

    model: str
    model_key: str
    task: str
    kind: str
    protocol: str
    label_names: tuple[str, ...]
    row_hash: str
    key: str
    labels: np.ndarray
    scores: np.ndarray
    validation: float
    test: float
    measures: Mapping[str, float]
    folds: tuple[FoldResult, ...]
    probe: Probe
    about: Mapping[str, Any]


def record_of(
    result: ProbeResult,
    data: TaskData,
    *,
    model: str,
    model_key: str,
    row_hash: str,
    protocol: str,
    key: str,
    seconds: Mapping[str, float],
) -> Record:
    """Return the record of a probe's result, with the versions that made it."""
    about = {
        "settings": PROTOCOLS[protocol].settings(),
        "interval": list(score_interval(result, data)),
        "num_unfinished_fits": result.num_unfinished,
        "versions": library_versions(),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }
    return Record(
        model=model,
        model_key=model_key,
        task=data.task,
        kind=data.kind,
        protocol=protocol,
        label_names=data.label_names,
        row_hash=row_hash,
        key=key,
        labels=data.labels,
        scores=data.scores,
        validation=result.validation,
        test=result.test,
        measures=dict(result.measures),
        folds=result.folds,
        probe=result.probe,
        about=about,
    )


def library_versions() -> dict[str, str]:
    """Return the versions that figures may depend on."""
    return {"raysent": __version__, **{name: version(name) for name in LIBRARIES}}


def write_record(folder: Path, record: Record) -> None:
    """Write `<task>.npz`, then `<task>.json`, whose presence says that the record is whole.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    # An older record must not vouch for newer arrays if this is interrupted between the two.
    remove(folder / f"{record.task}.json")
    arrays = {
        "labels": record.labels,
        "scores": record.scores,
        "probe_weights": record.probe.weights,
        "probe_intercepts": record.probe.intercepts,
    }
    for number, fold in enumerate(record.folds):
        arrays[f"fold{number}_validation_rows"] = fold.validation_rows
        arrays[f"fold{number}_validation_log_probabilities"] = fold.validation_log_probabilities
        arrays[f"fold{number}_test_rows"] = fold.test_rows
        arrays[f"fold{number}_test_log_probabilities"] = fold.test_log_probabilities
    save_arrays(folder / f"{record.task}.npz", arrays)
    plain = {name: getattr(record, name) for name in PLAIN}
    strengths = {"fold_strengths": [fold.strength for fold in record.folds], "probe_strength": record.probe.strength}
    about = {"kind_of_file": KIND, **plain, "label_names": list(record.label_names), **strengths, **record.about}
    write_json(folder / f"{record.task}.json", about)


def read_record(folder: Path, task: str, *, key: str | None = None) -> Record | None:
    """Return a record, or None if there is none, it is not whole, or it is of another key.

    Args:
        folder: The model's folder of records.
        task: The task's name.
        key: Where given, only a record of this key counts.
    """
    try:
        about = read_json(folder / f"{task}.json")
        if about["kind_of_file"] != KIND or key not in (None, about["key"]):
            return None
        return _record(about, load_arrays(folder / f"{task}.npz"))
    except (ArtifactError, KeyError, TypeError):
        # Whatever is missing or torn is simply made again.
        return None


def _record(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> Record:
    folds = tuple(
        FoldResult(
            validation_rows=arrays[f"fold{number}_validation_rows"],
            validation_log_probabilities=arrays[f"fold{number}_validation_log_probabilities"],
            test_rows=arrays[f"fold{number}_test_rows"],
            test_log_probabilities=arrays[f"fold{number}_test_log_probabilities"],
            strength=strength,
        )
        for number, strength in enumerate(about["fold_strengths"])
    )
    probe = Probe(arrays["probe_weights"], arrays["probe_intercepts"], about["probe_strength"])
    rest = {name: about[name] for name in ("settings", "interval", "num_unfinished_fits", "versions", "seconds")}
    rest["costs"] = about.get("costs", {})
    return Record(
        **{name: about[name] for name in PLAIN},
        label_names=tuple(about["label_names"]),
        labels=arrays["labels"],
        scores=arrays["scores"],
        folds=folds,
        probe=probe,
        about=rest,
    )
