"""The files of a sweep: `sweep.json` at its start, `trials.csv` at the end of a session; and its folder as a whole."""

from __future__ import annotations

import csv
import datetime
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from raysent.config import Document
from raysent.cost import Budget
from raysent.data.cells import without_formula
from raysent.data.unicode_form import OF_EARLIER, OF_NEW, UnicodeForm
from raysent.errors import ArtifactError, ConfigError
from raysent.models.encoders import ENCODERS
from raysent.models.objectives import CONTEXT_METRICS
from raysent.progress import messages
from raysent.redaction import without_secrets_in
from raysent.storage import address_of, read_json, write_json, write_text
from raysent.storage.layout import (
    JOURNAL_FILE,
    REPORTS_FILE,
    SWEEP_FILE,
    TRIALS_FILE,
    TRIALS_FOLDER,
)
from raysent.sweeps.cost_tracker import check_ledger
from raysent.sweeps.journal import Event, read_events, session_lengths
from raysent.sweeps.ranking import best_trial, median_values, rank_trials
from raysent.sweeps.space import SearchSpace, parse_space
from raysent.sweeps.trial import Trial, trial_name, trials_of
from raysent.training.run import software_versions

_FACTS = ("corpus", "pool", "memory_bytes")


def _completed(space: SearchSpace) -> dict[str, Any]:
    """Return a space's values with what an encoder's folder decides, so that they are read where the folder is not."""
    values = space.written()
    base = dict(values.get("base") or {})
    for part in ("encoder", "second_encoder"):
        encoder = base.get(part)
        if (
            isinstance(encoder, dict)
            and encoder.get("type") in ENCODERS
            and f"{part}.path" not in space.domains
        ):
            base[part] = ENCODERS[encoder["type"]].Config.completed(encoder)
    return {**values, "base": base} if base else values


def _with_form(space: Mapping[str, Any], unicode_form: UnicodeForm) -> dict[str, Any]:
    """Return a space's values with the form of Unicode that its trials read, unless they name one."""
    base = dict(space.get("base") or {})
    vocabulary = {"unicode_form": unicode_form, **(base.get("vocabulary") or {})}
    return {**space, "base": {**base, "vocabulary": vocabulary}}


@dataclass(frozen=True)
class RecordedTasks:
    """The evaluation that follows a sweep, as `sweep.json` names it.

    Attributes:
        specs: The tasks, as `resolve_tasks` takes them; None for all whose files are there.
        names: Their names, in the same order; the specs where an earlier version recorded none.
        data: Folder of task files.
        label_sizes: Numbers of labels, or `all`, at which models are also scored; none for no curves.
    """

    specs: Sequence[str] | None = None
    names: Sequence[str] = ()
    data: str | None = None
    label_sizes: Sequence[int | str] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RecordedTasks:
        """Return what the values of `sweep.json` say."""
        specs = values.get("tasks")
        names = values.get("names", specs or ())
        return cls(specs, names, values.get("data"), values.get("labels") or ())

    @property
    def named_specs(self) -> list[tuple[str, str]]:
        """The tasks' names, each with its spec."""
        return list(zip(self.names, self.specs or (), strict=True))

    def values(self) -> dict[str, Any]:
        """Return the values for `sweep.json`."""
        specs = None if self.specs is None else list(self.specs)
        values = {"data": self.data, "tasks": specs, "names": list(self.names)}
        return {**values, "labels": list(self.label_sizes)} if self.label_sizes else values


@dataclass(frozen=True)
class SweepRecord:
    """What `sweep.json` says.

    Attributes:
        space: The checked search space.
        seed: The sweep's seed.
        command: The command line that started it.
        address: The Ray cluster it ran on; None for one of its own.
        evaluation: `data` and `tasks` of the evaluation that follows, as given.
        started: When it was started, in seconds since 1970.
        facts: What was found before the first trial: `corpus` and `pool`.
        versions: Package -> version that started it.
        source: The search-space file; empty where the space's own document names it.
        origin: The folder that relative paths of the space start from; empty if it is unknown.
        device: What was chosen to compute on; None for GPUs where there are some.
    """

    space: SearchSpace
    seed: int
    command: Sequence[str] = ()
    address: str | None = None
    evaluation: dict[str, Any] | None = None
    started: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=software_versions)
    source: str = ""
    origin: str = field(default_factory=lambda: str(Path.cwd()))
    device: str | None = None

    @property
    def tasks(self) -> RecordedTasks:
        """What is evaluated after the search."""
        return RecordedTasks.of(self.evaluation or {})

    @property
    def budget(self) -> Budget:
        """What the sweep may spend, its deadline counted from its start."""
        return self.space.budget(datetime.datetime.fromtimestamp(self.started, datetime.UTC))

    def values(self) -> dict[str, Any]:
        """Return the values of `sweep.json`, without secrets of addresses: a run folder is copied and shared."""
        values = {
            "kind": "sweep",
            "name": self.space.name,
            "metric": self.space.metric,
            "metric_mode": self.space.mode,
            "seed": self.seed,
            "search": self.space.search,
            "space": _with_form(_completed(self.space), OF_NEW),
            "source": self.source or self.space.document.source,
            "command": list(self.command),
            "address": self.address,
            "evaluation": self.evaluation or {},
            "started": self.started,
            "versions": dict(self.versions),
            "origin": self.origin,
            "device": self.device,
            **self.facts,
        }
        cleaned: dict[str, Any] = without_secrets_in(values)
        return cleaned


def save_record(folder: Path, record: SweepRecord) -> None:
    """Write `sweep.json` into a run folder."""
    write_json(folder / SWEEP_FILE, record.values())


def load_record(folder: Path) -> SweepRecord:
    """Read `sweep.json`.

    Raises:
        ArtifactError: If the folder is no sweep's, or the file is truncated.
    """
    path = folder / SWEEP_FILE
    if not path.is_file():
        raise ArtifactError(
            f"{address_of(folder)}: not a sweep's folder, there is no {SWEEP_FILE} in it; name the folder of a sweep"
        )
    values = read_json(path)
    if not isinstance(values, dict) or values.get("kind") != "sweep":
        raise ArtifactError(
            f"{address_of(path)}: not the record of a sweep; name the folder of a sweep"
        )
    again = shlex.join(values.get("command") or ["raysent", "sweep"])
    if "judging" in values:
        raise ArtifactError(
            f"{address_of(path)}: raysent 0.1 wrote it; make the sweep again: {again}"
        )
    try:
        limits = values["space"].get("limits", {})
        if (
            limits.get("rung_unit") == "report"
        ):  # earlier versions had another one too, and wrote which
            del limits["rung_unit"]
        document = Document(_with_form(values["space"], OF_EARLIER), source=str(path))
        space = parse_space(document, name=values["name"], is_recorded=True)
        return SweepRecord(
            space,
            values["seed"],
            values["command"],
            values["address"],
            values["evaluation"],
            values["started"],
            {name: values[name] for name in _FACTS if name in values},
            values["versions"],
            values["source"],
            values.get("origin", ""),
            values.get("device"),
        )
    except ConfigError as error:  # such as a setting that this version does not have
        raise ArtifactError(
            f"{error}; if another version of raysent wrote it, make the sweep again: {again}"
        ) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"{address_of(path)}: not whole ({type(error).__name__}: {error}); restore it or start the sweep again"
        ) from None


# Packages whose other version gives other bits of weights and scores, or other proposals.
_NUMERICS = ("torch", "numpy", "optuna")

Verdict = Literal["same", "compatible", "different numerics"]


def compare_versions(
    recorded: Mapping[str, str], present: Mapping[str, str]
) -> tuple[Verdict, str]:
    """Return whether a sweep can be continued with other versions as if they were the same, and what differs.

    Another version of PyTorch, NumPy or Optuna, but for its last number, has different numerics. All other differences
    are compatible.
    """
    differing = [name for name in recorded if present.get(name, recorded[name]) != recorded[name]]
    numerics = [
        name
        for name in differing
        if name in _NUMERICS and _core(recorded[name]) != _core(present[name])
    ]
    text = ", ".join(
        f"{name} {recorded[name]} then, {present[name]} now" for name in numerics or differing
    )
    return "different numerics" if numerics else "compatible" if differing else "same", text


def check_versions(folder: Path, record: SweepRecord, *, is_accepted: bool) -> SweepRecord:
    """Check that this installation continues a sweep with the same numerics; accepted versions replace the recorded.

    Raises:
        ArtifactError: With the versions that differ, unless they are accepted.
    """
    present = software_versions()
    verdict, difference = compare_versions(record.versions, present)
    if verdict != "different numerics":
        return record
    if not is_accepted:
        raise ArtifactError(
            f"{address_of(folder)}: {difference}: trials would no longer be comparable to the last bit; install those "
            "versions, or resume with accept_versions=true"
        )
    return replace(record, versions=present)


def _core(version: str) -> tuple[list[str], str]:
    numbers, _, build = version.partition("+")
    return numbers.split(".")[:2], build


@dataclass(frozen=True)
class RecordedSweep:
    """What a sweep's folder says of it, finished or not.

    Attributes:
        folder: The run folder.
        record: What was swept, and how.
        events: The journal.
        trials: Every trial with its reports, in the order in which they were drawn.
    """

    folder: Path
    record: SweepRecord
    events: tuple[Event, ...]
    trials: tuple[Trial, ...]

    @property
    def space(self) -> SearchSpace:
        """The search space."""
        return self.record.space

    @cached_property
    def ranked(self) -> list[Trial]:
        """The trials from best to worst."""
        return rank_trials(self.space, self.trials)

    @cached_property
    def best(self) -> Trial | None:
        """The best trial; None where none has a value."""
        return best_trial(self.space, self.trials)

    @property
    def num_reports(self) -> int:
        """Reports of a whole run; 1 where no trial has reported."""
        return max((trial.num_reports for trial in self.trials), default=0) or 1

    @property
    def seconds(self) -> float:
        """Wall clock of all its sessions."""
        return sum(session_lengths(self.events))


def read_sweep(folder: Path) -> RecordedSweep:
    """Read the folder of a sweep; a ledger that is damaged or lacks lines is said in a line.

    Raises:
        ArtifactError: If the folder is no sweep's, or a file in it is damaged.
    """
    record = load_record(folder)
    try:
        events = tuple(read_events(folder))
        trials = tuple(trials_of(events).values())
    except (KeyError, TypeError) as error:
        raise ArtifactError(
            f"{address_of(folder / JOURNAL_FILE)}: not the journal of a sweep ({type(error).__name__}: {error}); "
            "restore it"
        ) from None
    try:
        check_ledger(folder, events)
    except ArtifactError as error:
        doctor = f"raysent doctor {shlex.quote(address_of(folder))}"
        messages.print(
            f"warning: {error}; what was spent is not known from it; see '{doctor}'", soft_wrap=True
        )
    return RecordedSweep(folder, record, events, trials)


def check_journal(folder: Path, events: Iterable[Event]) -> None:
    """Check that a journal has what the folders of trials say, whose ends are written after it.

    A trial starts only once its proposal is in the journal, and makes its next report only once the last one is. So
    lines that are gone from the journal's end are noticed, unless no trial went on after them.

    Raises:
        ArtifactError: If lines of the journal are missing.
    """
    num_reports: dict[str, int] = {}
    ended: set[str] = set()
    for event in events:
        match event["event"]:
            case "suggested":
                num_reports[event["trial"]] = 0
            case "report":
                num_reports[event["trial"]] = event["index"]
            case "ended":
                ended.add(event["trial"])
    for trial in sorted((folder / TRIALS_FOLDER).glob("[0-9]*")):
        if trial.name in ended:
            continue
        reports = trial / REPORTS_FILE
        made = reports.read_bytes().count(b"\n") if reports.is_file() else 0
        what = ""
        if trial.name not in num_reports:
            what = f"trial {trial.name} has a folder and no event"
        elif made > num_reports[trial.name] + 1:
            what = f"trial {trial.name} made {made} reports; it has {num_reports[trial.name]}"
        if what:
            raise ArtifactError(
                f"{address_of(folder / JOURNAL_FILE)}: must have its last lines; {what}; restore it, or start the "
                "sweep again in another folder"
            )


def trial_folder(folder: Path, number: int) -> Path:
    """Return the folder of the trial with this number."""
    return folder / TRIALS_FOLDER / trial_name(number)


def write_trials_table(folder: Path, space: SearchSpace, trials: Iterable[Trial]) -> None:
    """Write `trials.csv`: a row a trial, best first; with several seeds also the median by which they are ranked.

    A text that a spreadsheet would take for a formula is written after an apostrophe; see `as_cell`.

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
    names = [
        "trial",
        "status",
        *CONTEXT_METRICS,
        "seconds",
        "usd",
        *others,
        *of_seeds,
        *space.domains,
    ]
    table.writerow(map(as_cell, names))
    for trial in ranked:
        cells = [trial.name, trial.status, *map(trial.metrics.get, CONTEXT_METRICS)]
        cells += [round(trial.seconds, 1), round(trial.usd, 4), *map(trial.metrics.get, others)]
        cells += [medians[trial.name], trial.seed] if medians else []
        cells += map(trial.params.get, space.domains)
        table.writerow(map(as_cell, cells))
    write_text(folder / TRIALS_FILE, buffer.getvalue())


def as_cell(value: Any) -> Any:
    """Return a value for a table that may be opened in a spreadsheet; None is empty, numbers stay as they are.

    No text is a formula, see `raysent.data.cells`.
    """
    if isinstance(value, str):
        return without_formula(value)
    return "" if value is None else value
