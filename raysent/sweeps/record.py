"""What a sweep leaves beside its journal: `sweep.json` at the start, `trials.csv` whenever it ends or pauses."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from raysent.config import Document, Override
from raysent.errors import ArtifactError
from raysent.models.objectives import CONTEXT_METRICS
from raysent.storage import address_of, read_json, write_json, write_text
from raysent.storage.layout import SWEEP_FILE, TRIALS_FILE, TRIALS_FOLDER
from raysent.sweeps.journal_v1 import upgrade_record
from raysent.sweeps.ranking import median_values, rank_trials
from raysent.sweeps.space import SearchSpace, apply_overrides, parse_space
from raysent.sweeps.trial import Trial, trial_name

_PACKAGES = ("raysent", "ray", "optuna", "torch", "numpy")


@dataclass(frozen=True)
class SweepRecord:
    """What `sweep.json` says.

    Attributes:
        space: The checked search space.
        seed: The sweep's seed.
        command: The command line that started it.
        address: The Ray cluster it ran on; None for one of its own.
        evaluation: `data` and `tasks` of the evaluation that follows, as given.
        started: When it was begun, in seconds since 1970.
    """

    space: SearchSpace
    seed: int
    command: Sequence[str] = ()
    address: str | None = None
    evaluation: dict[str, Any] | None = None
    started: float = 0.0


def save_record(folder: Path, record: SweepRecord, *, facts: dict[str, Any]) -> None:
    """Write `sweep.json`.

    Args:
        folder: The run folder.
        record: What is swept.
        facts: What was found before the first trial: `corpus` and `pool`.
    """
    space = record.space
    write_json(
        folder / SWEEP_FILE,
        {
            "kind": "sweep",
            "name": space.name,
            "metric": space.metric,
            "metric_mode": space.mode,
            "seed": record.seed,
            "search": space.document.values.get("search", {}),
            "space": space.document.values,
            "source": space.document.source,
            "command": list(record.command),
            "address": record.address,
            "evaluation": record.evaluation or {},
            "started": record.started,
            "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
            **facts,
        },
    )


def load_record(folder: Path) -> SweepRecord:
    """Read `sweep.json`.

    Raises:
        ArtifactError: If the folder is no sweep's, or the file is truncated.
    """
    path = folder / SWEEP_FILE
    if not path.is_file():
        raise ArtifactError(
            f"{address_of(folder)}: not a sweep's folder, there is no {SWEEP_FILE} in it; name what --run named"
        )
    values = _read_values(path)
    try:
        space = parse_space(Document(values=values["space"], source=str(path)), name=values["name"])
        return SweepRecord(
            space, values["seed"], values["command"], values["address"], values["evaluation"], values["started"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"{address_of(path)}: not whole ({type(error).__name__}: {error}); restore it or sweep anew"
        ) from None


def change_limits(folder: Path, limits: Sequence[Override]) -> SweepRecord:
    """Give a sweep another budget or deadline, in `sweep.json` too.

    Raises:
        RaysentError: If the folder is no sweep's, or a value is none that may stand there.
    """
    record = load_record(folder)
    space = parse_space(apply_overrides(record.space.document, limits), name=record.space.name)
    write_json(folder / SWEEP_FILE, {**_read_values(folder / SWEEP_FILE), "space": space.document.values})
    return replace(record, space=space)


def _read_values(path: Path) -> dict[str, Any]:
    """Return the values of `sweep.json` under the names of this version."""
    values = read_json(path)
    if not isinstance(values, dict) or values.get("kind") != "sweep":
        raise ArtifactError(f"{address_of(path)}: not the record of a sweep; name what --run named")
    return upgrade_record(values)


def trial_folder(folder: Path, number: int) -> Path:
    """Return the folder of the trial with this number."""
    return folder / TRIALS_FOLDER / trial_name(number)


def write_trials_table(folder: Path, space: SearchSpace, trials: Iterable[Trial]) -> None:
    """Write `trials.csv`: a row a trial, best first; with several seeds also the median by which they are ranked.

    Args:
        folder: The run folder.
        space: What was searched.
        trials: The sweep's trials.
    """
    ranked = rank_trials(space, trials)
    medians = median_values(space, ranked) if space.limits.seeds > 1 else {}
    others = [] if space.metric in CONTEXT_METRICS else [space.metric]
    of_seeds = [f"median_{space.metric}", "seed"] if medians else []
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(["trial", "status", *CONTEXT_METRICS, "seconds", "usd", *others, *of_seeds, *space.domains])
    for trial in ranked:
        cells = [trial.name, trial.status, *map(trial.metrics.get, CONTEXT_METRICS)]
        cells += [round(trial.seconds, 1), round(trial.usd, 4), *map(trial.metrics.get, others)]
        cells += [medians[trial.name], trial.seed] if medians else []
        cells += map(trial.params.get, space.domains)
        table.writerow(["" if cell is None else cell for cell in cells])
    write_text(folder / TRIALS_FILE, buffer.getvalue())
