"""What is there: `doctor`, whether files are whole, and `components`, encoders and all else that is installed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from raysent.data.tables import is_table
from raysent.ensembles.methods import METHODS
from raysent.errors import ArtifactError, ConfigError, did_you_mean
from raysent.evaluation.protocols import PROTOCOLS
from raysent.evaluation.task import VALIDATED, TaskData
from raysent.evaluation.tasks import TASKS, check_data, resolve_tasks
from raysent.models.codes import CODES
from raysent.models.encoders import ENCODERS
from raysent.models.objectives import OBJECTIVES
from raysent.models.schemes import SCHEMES
from raysent.registry import Component, Registry
from raysent.storage import address_of, is_remote, open_folder
from raysent.storage.layout import SWEEP_FILE
from raysent.sweeps import (
    Event,
    check_journal,
    check_ledger,
    load_record,
    read_events,
    read_ledger,
    spent_usd,
)
from raysent.sweeps.driver import check_task_names
from raysent.sweeps.samplers import SAMPLERS
from raysent.sweeps.schedulers import SCHEDULERS
from raysent.sweeps.space import find_space, read_space
from raysent.sweeps.trackers import TRACKERS

# Classes that are shown with their rows.
_SHOWN_CLASSES = 12
T = TypeVar("T")
# Kinds of components that wings have: the values of entry points are registries, such as that of formats.
_OF_WINGS: Registry[Registry[Any]] = Registry(
    "registry",
    read=lambda registry: {registry.group.partition(".")[2]: registry},
    plural="registries",
)


@dataclass(frozen=True)
class Health:
    """What `doctor` found.

    Attributes:
        lines: What there is, in words.
        problems: What is damaged, one line each; empty if all is well.
        facts: The same as plain values.
    """

    lines: tuple[str, ...]
    problems: tuple[str, ...]
    facts: Mapping[str, Any]

    def values(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {"problems": list(self.problems), **self.facts}


def doctor(path: str | Path) -> Health:
    """Check a sweep's journal and ledger, a folder of task files, a table or a search space; nothing is changed.

    Args:
        path: A sweep's folder; a folder in SentEval's layout, whose files are counted; a table, which is read as for
            `--task`; or a search-space file or the bare name of a shipped one, which is checked at every edge of its
            search.

    Raises:
        RaysentError: If there is no such file or folder, or the search space is wrong.
    """
    if not is_remote(str(path)) and not Path(path).is_dir():
        return _of_table(str(path)) if is_table(path) else _of_space(path)
    folder = open_folder(path)
    if (folder / SWEEP_FILE).exists() or is_remote(str(path)):
        return _of_sweep(folder)
    return _of_tasks(folder)


def _of_sweep(folder: Path) -> Health:
    load_record(folder)
    problems: list[str] = []

    def checked(read: Callable[[], T]) -> T | None:
        """Return what is read; None, and its problem in the list, if a file is damaged."""
        try:
            return read()
        except ArtifactError as error:
            problems.append(str(error))
            return None

    def events_of_journal() -> list[Event]:
        events = list(read_events(folder))
        check_journal(folder, events)
        return events

    def sum_of_ledger() -> float:
        check_ledger(folder, events or ())
        return spent_usd(folder)

    events = checked(events_of_journal)
    entries = checked(lambda: read_ledger(folder))
    spent = None if entries is None else checked(sum_of_ledger)
    facts = {
        "run": address_of(folder),
        "num_events": None if events is None else len(events),
        "num_entries": None if entries is None else len(entries),
        "spent_usd": spent,
    }
    in_words = [
        "unknown events" if events is None else f"{len(events)} events",
        "unknown ledger entries" if entries is None else f"{len(entries)} ledger entries",
        "spent unknown" if spent is None else f"spent {spent:.2f} usd",
    ]
    return Health((", ".join(in_words),), tuple(problems), facts)


def _of_tasks(folder: Path) -> Health:
    found = check_data(folder)
    lines = [
        f"{one.task}: complete, {one.num_rows:,} rows" for one in found if one.status == "complete"
    ]
    lines += [
        f"{one.task}: {one.problem}; published at {one.source}"
        for one in found
        if one.status == "missing"
    ]
    problems = tuple(one.problem for one in found if one.status == "wrong")
    if all(one.status == "missing" for one in found):
        problems = (f"{folder}: must hold the files of a task at least; found none",)
    return Health(
        tuple(lines), problems, {"folder": str(folder), "tasks": [asdict(one) for one in found]}
    )


def _of_table(path: str) -> Health:
    """Return what a sweep would read in a table: columns, rows, classes and their sizes, and what looks wrong."""
    lines: list[str] = []
    warnings: list[str] = []
    facts: list[dict[str, Any]] = []
    for task in resolve_tasks([path], scorings=VALIDATED):
        rows = task.load()
        lines += task.remarks.notes
        warnings += [f"{path}: {warning}" for warning in task.remarks.warnings]
        fact: dict[str, Any] = {"task": task.name, "scoring": task.scoring}
        if isinstance(rows, TaskData) and not rows.is_scored:
            counts = np.bincount(rows.labels, minlength=len(rows.label_names))
            fact["classes"] = dict(zip(rows.label_names, counts.tolist(), strict=True))
            largest = sorted(fact["classes"].items(), key=lambda of_class: -of_class[1])
            shown = [f"{name} {count:,}" for name, count in largest[:_SHOWN_CLASSES]]
            num_more = len(largest) - len(shown)
            shown += [f"{num_more} more"] if num_more else []
            lines.append(f"{task.name}: rows of each class: {', '.join(shown)}")
        facts.append(fact)
    lines += [f"warning: {warning}" for warning in warnings]
    lines.append(f"to train on it: raysent sweep --task {shlex.quote(path)}")
    return Health(tuple(lines), (), {"file": path, "tasks": facts, "warnings": warnings})


def _of_space(path: str | Path) -> Health:
    space = read_space(find_space(str(path)))
    check_task_names(space)
    facts = {"file": str(path), "names": len(space.domains), "trials": space.limits.trials}
    return Health(
        (f"{path}: ok, searches {facts['names']} names in {facts['trials']} trials",), (), facts
    )


def registries() -> dict[str, Registry[Any]]:
    """Return the registry of each kind of component, by the kind's name in `components`."""
    return {
        "encoders": ENCODERS,
        "objectives": OBJECTIVES,
        "codes": CODES,
        "schemes": SCHEMES,
        "tasks": TASKS,
        "protocols": PROTOCOLS,
        "ensemble_methods": METHODS,
        "samplers": SAMPLERS,
        "schedulers": SCHEDULERS,
        "trackers": TRACKERS,
        **_OF_WINGS,
    }


def _summary(kind: str, component: Component[Any]) -> str:
    reads = (
        f"; reads {component.value.Config.model_construct().reads}." if kind == "objectives" else ""
    )
    return f"{component.summary.removesuffix('.')}{reads}" if reads else component.summary


def components(kind: str | None = None) -> pd.DataFrame:
    """Return the encoders, objectives, tasks and other components that are installed.

    Another package adds one by an entry point of the group ``raysent.KIND``.

    Args:
        kind: Only components of this kind, such as ``encoders``.

    Returns:
        Columns ``kind``, ``name``, ``package`` and ``summary``. ``attrs["broken"]`` has entry points that cannot be
        loaded, by kind and name such as ``encoders.mine``, and why.

    Raises:
        ConfigError: If there is no such kind.
    """
    registry_of = registries()
    if kind is not None and kind not in registry_of:
        raise ConfigError(f"{kind}: unknown kind of component{did_you_mean(kind, registry_of)}")
    rows: list[dict[str, str]] = []
    broken: dict[str, str] = {}
    for name, registry in registry_of.items():
        if kind in (None, name):
            rows += [
                {
                    "kind": name,
                    "name": one.name,
                    "package": one.package,
                    "summary": _summary(name, one),
                }
                for one in registry.components()
            ]
            broken |= {f"{name}.{point}": reason for point, reason in registry.broken.items()}
    table = pd.DataFrame(rows, columns=["kind", "name", "package", "summary"])
    table.attrs["broken"] = broken
    return table
