"""The family `pretrained` of a sweep: trials that start from the pretrained encoder at hand and learn a task's labels.

In: a space with a section `pretrained`, the encoders that take part, and the task. Out: the space with the family among
its others, or as its only one where it had nothing to train, with the steps that the measured speed leaves time for;
and a line about why it takes no part, where it does not.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raysent.config import Override, get_dotted, set_dotted
from raysent.errors import RaysentError
from raysent.evaluation.division import divided
from raysent.evaluation.task import TaskData
from raysent.evaluation.task_set import TaskSet
from raysent.models.backbone import read_backbone
from raysent.models.known import PRETRAINED_SCHEMES, find_encoder
from raysent.models.schemes import split_path
from raysent.parallel import Progress
from raysent.pipeline.arguments import ranking_tasks, spec_of
from raysent.progress import format_duration
from raysent.sweeps.fitting import trial_seconds
from raysent.sweeps.layout import layout
from raysent.sweeps.machines import machines_at
from raysent.sweeps.parts import NUM_MORE
from raysent.sweeps.space import Choice, Domain, SearchSpace, with_overrides, with_values
from raysent.sweeps.space.space import FAMILY, parse_domain
from raysent.sweeps.speed import is_alike, recent_run_s
from raysent.training.data import open_training_data
from raysent.training.labels import LabelsConfig
from raysent.training.plan import open_stream
from raysent.training.run import RunConfig
from raysent.training.workers import Workers

NAME = "pretrained"
_SECTION = "pretrained"
_STEPS, _BATCH = "training.steps", "training.batch_size"
# Fewer steps than this teach next to nothing.
LEAST_STEPS = 100
# Of a step that is not measured, as of a cluster with other devices, in seconds.
_UNMEASURED_STEP_S = 0.5


@dataclass(frozen=True)
class _Start:
    """What trials of the family start from.

    Attributes:
        name: Of the encoder, for a reader.
        encoder: Settings of the encoder.
        others: Paths of further encoders, which are searched with it.
    """

    name: str
    encoder: Mapping[str, Any]
    others: tuple[str, ...] = ()


def with_pretrained_family(
    space: SearchSpace,
    encoders: Sequence[str],
    tasks: TaskSet,
    *,
    address: str | None = None,
    progress: Progress | None = None,
    is_fitted: bool = True,
) -> tuple[SearchSpace, str]:
    """Return a space with the family, and a line about why it takes no part; empty where it does, or there is none.

    Args:
        space: The space.
        encoders: Names of the pretrained encoders that take part, as `load` takes them.
        tasks: The tasks that the best trials are evaluated on.
        address: The Ray cluster; None for this machine.
        progress: Called with the progress of measuring.
        is_fitted: Whether the space's other settings are fitted: else it gets the family only where it has no other.

    Raises:
        RaysentError: If the space cannot have the family.
    """
    if space.pretrained is None or not (is_fitted or is_only_family(space)):
        return space, ""
    start = _start_of(space, encoders)
    rows = _rows_of(tasks)
    left_out = without_section(space)
    if start is None or rows is None:
        return left_out, ""
    labels = {
        "task": spec_of(tasks.tasks[0]),
        "data": tasks.folder,
    }
    joined = _joined(space, start, labels, rows)
    if not joined.setting("validation.downstream.tasks"):
        ranking = ranking_tasks(space, replace(tasks, are_named=True))
        values = joined.written()
        validation = values["base"].setdefault("validation", {})
        validation["downstream"] = ranking and ranking.model_dump(exclude_none=True)
        joined = with_values(joined, values)
    measured = _measured(joined, address, progress)
    return _in_time(joined, left_out, start, measured)


def is_only_family(space: SearchSpace) -> bool:
    """Return whether the family is the only one of a space that it joins.

    So it is where the space says so, where the user names the encoder, and where the only text is that of the task's
    rows.
    """
    is_named = bool(_named_parts(space) & {"encoder", "initial"})
    says_so = space.pretrained is not None and space.pretrained.alone
    return is_named or says_so or "corpus" in space.fitted


def _named_parts(space: SearchSpace) -> set[str]:
    """Return the parts of a run that the user sets."""
    return {path[1] for path in space.document.options if path[0] == "base" and len(path) > 1}


def without_section(space: SearchSpace) -> SearchSpace:
    """Return a space without what the family would add."""
    values = space.written()
    values.pop(_SECTION, None)
    return with_values(space, values)


def learned_labels(space: SearchSpace) -> LabelsConfig | None:
    """Return the task whose labels some run of a space learns; None where none learns any."""
    runs = (space.config(params) for params in space.edges())
    return next((run.labels for run in runs if run.source is run.labels), None)


def with_labelled_rows(space: SearchSpace, file: str) -> SearchSpace:
    """Return a space whose runs read the labels that they learn from a file of rows, wherever it names a task for them.

    Args:
        space: The space.
        file: Address of what `save_rows` wrote.
    """
    values = space.written()
    families = get_dotted(values, f"search.{FAMILY}.choice", {})
    for run in (values.get("base", {}), *families.values()):
        if isinstance(run.get("labels"), dict) and run["labels"].get("task") is not None:
            run["labels"]["rows"] = file
    return with_values(space, values)


def _start_of(space: SearchSpace, encoders: Sequence[str]) -> _Start | None:
    """Return what trials start from: the encoder that the user sets in the space, else the first that is trainable."""
    config = space.config(space.first_params())
    if _named_parts(space) & {"encoder", "initial"}:
        named = config.tokenizer
        if named is None or config.encoder.type != "pretrained":
            return None
        return _Start(str(named.path), config.encoder.model_dump(mode="json"))
    places = [place for place in map(_trainable, encoders) if place is not None]
    if not places:
        return None
    return _Start(Path(places[0]).name, {"path": places[0]}, tuple(places[1:]))


def _trainable(encoder: str) -> str | None:
    """Return the path of an encoder that can be trained; None of one that is a member as it is alone."""
    scheme, place = split_path(encoder)
    if scheme not in PRETRAINED_SCHEMES or place is None:
        return None
    try:
        read_backbone(str(find_encoder(place, has_weights=False).folder))
    except RaysentError:
        return None
    return place


def _rows_of(tasks: TaskSet) -> TaskData | None:
    """Return the rows of the only task, divided, if it has one text and a class a row."""
    if len(tasks) != 1 or tasks.tasks[0].scoring != "accuracy":
        return None
    rows = tasks.tasks[0].load(tasks.data)
    if not isinstance(rows, TaskData) or rows.is_scored or rows.kind != "sentence":
        return None
    return divided(rows)


def _joined(
    space: SearchSpace,
    start: _Start,
    labels: Mapping[str, Any],
    rows: TaskData,
) -> SearchSpace:
    """Return a space with the family; what it searches without a condition is then of its other families."""
    section = space.pretrained
    assert section is not None
    is_alone = is_only_family(space)
    values = space.written()
    del values[_SECTION]
    run = copy.deepcopy(section.run)
    run["encoder"] = {**run.get("encoder", {}), **start.encoder}
    run["labels"] = dict(labels)
    # Two rows of each class are the least that contrast needs.
    least = 2 * len(rows.label_names)
    training = run.setdefault("training", {})
    training["batch_size"] = max(training.get("batch_size", least), least)
    given = {".".join(path[1:]) for path in space.document.options if path[0] == "base"}
    for name in given:  # what the user sets holds for the family too, and ends its search
        if get_dotted(run, name, ...) is not ...:
            set_dotted(run, name, get_dotted(values["base"], name))
    of_family = {name: domain for name, domain in section.search.items() if name not in given}
    if _BATCH in of_family:
        of_family[_BATCH] = _at_least(of_family[_BATCH], least)
    if start.others:
        paths = {"choice": [start.encoder["path"], *start.others]}
        of_family = {"encoder.path": paths, **of_family}
    search, when = values.pop("search", {}), values.pop("when", {})
    families = {} if is_alone else search.pop(FAMILY, {"choice": {"words": {}}})["choice"]
    searched = {FAMILY: {"choice": {**families, NAME: run}}}
    conditions: dict[str, Any] = {}
    shared = [
        name for name in search if name in section.search or name in _named_first(section.first)
    ]
    for name, domain in search.items():
        if name == FAMILY or (is_alone and name not in shared):
            continue
        searched[name] = domain
        conditions[name] = dict(when.get(name, {}))
        if name not in shared and FAMILY not in conditions[name]:
            conditions[name][FAMILY] = list(families)
    for name, domain in of_family.items():
        if name in shared:
            continue
        searched[name] = domain
        conditions[name] = {**section.when.get(name, {}), FAMILY: NAME}
    values |= {"search": searched, "when": {name: one for name, one in conditions.items() if one}}
    values["first"] = [{FAMILY: NAME, **settings} for settings in section.first] + values.get(
        "first", []
    )
    if is_alone:
        values.pop("fit", None)
        values["metric"] = "downstream"
    return with_values(space, values)


def _named_first(first: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name for settings in first for name in settings}


@dataclass(frozen=True)
class _Measured:
    """How long trials of the family take.

    Attributes:
        step_s: Seconds of a step.
        report_s: Seconds of a report.
        trial_s: Seconds that a trial may take; None for no limit.
        limit: Where that comes from, in words.
    """

    step_s: float
    report_s: float
    trial_s: float | None
    limit: str


def _measured(space: SearchSpace, address: str | None, progress: Progress | None) -> _Measured:
    """Measure a step, and share the time among the trials and the trainings after them."""
    machines = machines_at(address, space)
    plan = layout(space.limits, machines, num_trials=space.limits.trials)
    trials = Override("limits.trials", space.limits.trials + NUM_MORE, "the family pretrained")
    seconds, limit = trial_seconds(with_overrides(space, [trials]), plan, num_machines=machines.num)
    if not is_alike(machines, address):
        return _Measured(_UNMEASURED_STEP_S, 0.0, seconds, limit)
    if progress is not None:
        progress("timing a few training steps for the plan", 1, None)
    config = _config_of(space)
    text = open_training_data(config)
    epoch_s, report_s = recent_run_s(config, text, num_threads=plan.cpus_per_worker)
    num_batches = open_stream(config, text, Workers()).num_batches
    return _Measured(epoch_s / num_batches, report_s, seconds, limit)


def _in_time(
    joined: SearchSpace, left_out: SearchSpace, start: _Start, measured: _Measured
) -> tuple[SearchSpace, str]:
    """Return the space whose trials of the family have the steps that the time is enough for; else without them."""
    if measured.trial_s is None:
        return joined, ""
    num_reports = _config_of(joined).training.num_reports
    steps = int((measured.trial_s - num_reports * measured.report_s) / measured.step_s)
    each = (
        f"a step takes {measured.step_s:.2g} s, and a trial may take "
        f"{format_duration(measured.trial_s)} ({measured.limit})"
    )
    values = joined.written()
    searched = values["search"].get(_STEPS)
    needed = LEAST_STEPS
    if searched is not None:
        needed = max(needed, _least_number(parse_domain(searched)))
    if steps < needed:
        return left_out, (
            f"no trial starts from {start.name}: {each}, enough for {max(0, steps)} of the {needed} steps "
            "that teach something; more time or fewer trials have them"
        )
    if searched is not None:
        values["search"][_STEPS] = _at_most(searched, steps)
    values["fitted"] = {**values.get("fitted", {}), _STEPS: f"from {start.name}: {each}"}
    return with_values(joined, values), ""


def _at_most(written: Any, most: int) -> Any:
    """Return a searched number of steps, as it is written, without what is more; some of it has to be as few."""
    domain = parse_domain(written)
    if isinstance(domain, Choice):
        return {
            "choice": {label: value for label, value in domain.options.items() if value <= most}
        }
    return _with_bounds(written, domain.low, min(domain.high, most))


def _at_least(written: Any, least: int) -> Any:
    """Return a searched batch size, as it is written, in which what is too few is the least."""
    domain = parse_domain(written)
    if isinstance(domain, Choice):
        sizes = [max(value, least) for value in domain.options.values()]
        return {"choice": list(dict.fromkeys(sizes))}
    return _with_bounds(written, max(domain.low, least), max(domain.high, least))


def _with_bounds(written: Any, low: float, high: float) -> Any:
    """Return an interval, as it is written, with other bounds."""
    ((form, (_, _, *step)),) = written.items()
    return {form: [low, high, *step]}


def _least_number(domain: Domain) -> int:
    """Return the least of the numbers that are searched."""
    if isinstance(domain, Choice):
        return int(min(domain.options.values()))
    return math.ceil(domain.low)


def _config_of(space: SearchSpace) -> RunConfig:
    """Return the first run of the family."""
    return next(space.config(params) for params in space.edges() if params.get(FAMILY) == NAME)
