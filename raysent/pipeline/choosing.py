"""Which tasks with queries chose a model, so that their queries of dev do not test it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from raysent.errors import RaysentError
from raysent.evaluation.members import Model
from raysent.evaluation.task import VALIDATED
from raysent.evaluation.tasks import find_task
from raysent.storage import read_json
from raysent.storage.layout import FUSION_FILE, SWEEP_FILE
from raysent.sweeps import load_record


def names_that_chose(models: Sequence[Model]) -> frozenset[str]:
    """Return the names of the tasks by which some of these models may have been chosen, fitted or ranked."""
    names = set[str]()
    for model in models:
        source = model if isinstance(model, str | Path) else model.source
        if source is not None and Path(source).is_dir():
            with contextlib.suppress(RaysentError):  # who loads the model says what is wrong
                names |= _names_of_folder(Path(source).resolve())
    return frozenset(names)


def _names_of_folder(folder: Path) -> set[str]:
    names = set[str]()
    if (folder / FUSION_FILE).is_file():
        answer = read_json(folder / FUSION_FILE).get("answer") or {}
        names.add(str(answer.get("task")))
    # A sweep's folder, its best model or encoder, and one of its trials.
    for run in (folder, folder.parent, folder.parent.parent):
        if (run / SWEEP_FILE).is_file():
            names |= _names_of_sweep(run)
    return names


def _names_of_sweep(run: Path) -> set[str]:
    record = load_record(run)
    names = set(record.tasks.names)
    specs = list(record.tasks.specs or ())
    downstream = record.space.config(record.space.first_params()).validation.downstream
    if downstream is not None:
        specs += downstream.tasks or ()
    for spec in specs:
        with contextlib.suppress(RaysentError):  # of a table that is elsewhere by now
            names.add(find_task(spec, scorings=VALIDATED).name)
    return names
