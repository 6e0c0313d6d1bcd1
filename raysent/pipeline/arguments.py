"""What the functions are given, read and checked: a space, overrides, tasks, a folder; and what they print.

Tasks alone are swept by every family, on the text of the tasks' own training rows, for ten minutes.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from raysent.config import Document, Override, dotted_values
from raysent.data.corpus import corpus_language, corpus_notes
from raysent.errors import ConfigError, RaysentError, did_you_mean
from raysent.evaluation.division import divided
from raysent.evaluation.members import model_folder
from raysent.evaluation.task import PROBED, VALIDATED, RetrievalData, SimilarityData, Task, TaskData
from raysent.evaluation.task_files import OwnTask
from raysent.evaluation.task_set import TaskSet
from raysent.evaluation.tasks import load_task, resolve_tasks
from raysent.live import SweepView, is_submitted
from raysent.models.files import read_record
from raysent.models.known import PRETRAINED_SCHEMES, find_encoder
from raysent.models.schemes import missing_model, split_path, with_scheme
from raysent.pipeline.scales import SpaceScale, scale_overrides
from raysent.progress import messages
from raysent.screen import detail, show, warn
from raysent.storage import atomic_write, cache_folder, content_key, open_folder, safe_name
from raysent.sweeps.lessons import lesson_overrides
from raysent.sweeps.space import (
    SETTINGS,
    SearchSpace,
    find_space,
    parse_space,
    read_space,
    with_overrides,
)
from raysent.training.run import RunConfig
from raysent.training.validation import METRICS, NUM_DOCUMENTS, DownstreamConfig

# A search space by its file, its bare name, its values, or as it was read.
Space = str | Path | Mapping[str, Any] | SearchSpace
SPACE, TRIALS, TIME = "everything", 12, "10m"
# The text of rows, in the cache until a run takes it along.
_FOLDER, _FILE = "texts", "text.jsonl"
_ENDS = ("time", "deadline", "budget")
# Types of encoders that are trained at lower rates.
TRANSFORMERS = ("pretrained", "transformer")
_DROPOUT = 0.1


@dataclass(frozen=True)
class SpaceOptions:
    """What a caller sets in a space.

    Attributes:
        corpus: Text to train on; None for the space's own.
        set: Dotted name -> value of the base run; also the metric.
        scale: How the settings are chosen that the space lists under `fit`.
        metric: What trials are ranked by: a metric, or a task; None for the space's own.
        data: Folder of task files.
        settings: Settings of the sections `limits`, `cost` and `evaluation` by their names alone; None sets nothing.
    """

    corpus: str | Path | None = None
    set: Mapping[str, Any] | None = None
    scale: SpaceScale = "auto"
    metric: str | Task | None = None
    data: str | Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """The dotted names of what is set, beside the corpus and the metric that have an argument of their own."""
        typed = [name for name, value in self.settings.items() if value is not None]
        sections = [f"{section}.{name}" for section in ("limits", "cost") for name in typed]
        return frozenset((*dict(dotted_values(dict(self.set or {}))), *sections))

    def overrides(self, space: Path | SearchSpace) -> list[Override]:
        """Return what is set in a space.

        Raises:
            RaysentError: If an argument is unknown, or the metric or the scale is wrong.
        """
        unknown = next((name for name in self.settings if name not in SETTINGS), None)
        if unknown is not None:
            raise ConfigError(f"{unknown}: unknown argument{did_you_mean(unknown, SETTINGS)}")
        values = dict(self.set or {})
        set_metric = values.pop("metric", None)
        metric = set_metric if self.metric is None else self.metric
        if metric is not None:
            values = {**metric_values(metric, self.data), **values}
        arguments = {
            name: (f"{SETTINGS[name][0]}.{name}", value) for name, value in self.settings.items()
        }
        arguments["corpus"] = ("corpus.path", None if self.corpus is None else str(self.corpus))
        overrides = overrides_of(arguments, values)
        if self.scale == "auto":
            return overrides
        read = read_space(space) if isinstance(space, Path) else space
        return [*scale_overrides(read, self.scale, data=self.data), *overrides]


_NOTHING_SET = SpaceOptions()


def space_of(space: Space, options: SpaceOptions = _NOTHING_SET) -> SearchSpace:
    """Return a checked space with what the caller sets."""
    if isinstance(space, (str, Path)):
        path = find_space(str(space))
        checked = read_space(path, overrides=options.overrides(path))
    else:
        if not isinstance(space, SearchSpace):
            space = parse_space(
                Document(values=dict(space), source="space"), name=str(space.get("name", "space"))
            )
        overrides = options.overrides(space)
        checked = with_overrides(space, overrides) if overrides else space
    if options.corpus is not None:
        _check_reads_text(checked)
    return checked


def _check_reads_text(space: SearchSpace) -> None:
    """Refuse a corpus for a space of which no run reads one."""
    configs = [space.config(params) for params in space.edges()]
    if configs and all(config.source is not config.corpus for config in configs):
        read = "pairs" if configs[0].source is configs[0].pairs else "a task's rows"
        raise ConfigError(
            f"corpus: must be left out with space {space.name}, which reads {read} alone"
        )


def overrides_of(
    arguments: Mapping[str, tuple[str, Any]], values: Mapping[str, Any] | None = None
) -> list[Override]:
    """Return arguments as overrides; wider names first, so that a whole section does not undo a value inside it.

    Args:
        arguments: Argument -> the name that it sets, and the value; None if it is not given.
        values: The argument `set`.
    """
    given = [
        Override(name, value, f"{key}={value}")
        for key, (name, value) in arguments.items()
        if value is not None
    ]
    given += [
        Override(name, value, f"set {name}={value}") for name, value in (values or {}).items()
    ]
    return sorted(given, key=lambda override: override.name.count("."))


# Rows of all named tasks together that a probe trains on at each report, and of one task at least.
_RANKING_ROWS, _FEWEST_ROWS = 2000, 500


def tasks_of(
    space: SearchSpace,
    names: Sequence[str | Task] | None,
    data: str | Path | None,
) -> TaskSet:
    """Return the tasks that are named, else those of the space, else all whose files are there."""
    chosen = space.evaluation.tasks if names is None else names
    try:
        tasks = TaskSet.resolve(chosen, data, are_named=names is not None)
    except RaysentError as error:
        if names is not None or space.evaluation.tasks is None:
            raise
        raise space.document.error(
            ("evaluation", "tasks"), str(error).removeprefix("tasks ")
        ) from None
    return tasks


def with_labels_of(space: SearchSpace, tasks: TaskSet) -> SearchSpace:
    """Return a space that learns the labels of the only task that is named, where it learns labels and names none.

    Trials are ranked by the task too, unless the space names others.

    Args:
        space: The space.
        tasks: The tasks that the best trials are evaluated on.

    Raises:
        ConfigError: If several tasks are named.
    """
    labels = space.setting("labels")
    if not tasks.are_named or not isinstance(labels, dict) or labels.get("task") is not None:
        return space
    if len(tasks) != 1:
        raise ConfigError(
            f"labels.task: must name the task whose labels are learned; given {', '.join(tasks.names)}"
        )
    values: dict[str, Any] = {
        "base.labels.task": spec_of(tasks.tasks[0]),
        "base.labels.data": tasks.folder,
    }
    if (space.setting("validation.downstream") or {}).get("tasks") is None:
        ranking = ranking_tasks(space, tasks)
        values["base.validation.downstream"] = ranking and ranking.model_dump(exclude_none=True)
    return with_overrides(space, [Override(name, value, "tasks") for name, value in values.items()])


def ranking_tasks(space: SearchSpace, tasks: TaskSet) -> DownstreamConfig | None:
    """Return the tasks that trials are ranked by where the metric is chosen; None if none are named.

    Args:
        space: The space, which may name tasks too.
        tasks: The tasks that the best trials are evaluated on.
    """
    if not len(tasks) or not (tasks.are_named or space.evaluation.tasks is not None):
        return None
    return DownstreamConfig(
        tasks=[spec_of(task) for task in tasks],
        data=tasks.folder,
        max_rows=max(_FEWEST_ROWS, _RANKING_ROWS // len(tasks)),
    )


def spec_of(task: Task) -> str:
    """Return a task as a record names it; a submitted job's files are named from its folder, which moves on resume."""
    return task.spec.replace(f"{Path.cwd()}/", "") if is_submitted() else task.spec


def print_remarks(tasks: Iterable[Task], *, with_summaries: bool = False) -> None:
    """Print what may make tasks' scores misleading; what was guessed of their files is a detail.

    Args:
        tasks: The tasks.
        with_summaries: Whether what the rows of each are is printed before, as where no plan says it.
    """
    for task in tasks:
        if with_summaries:
            show(task.remarks.summary)
        detail(*task.remarks.notes)
        for warning in task.remarks.warnings:
            warn(warning)


def print_notes(config: RunConfig) -> None:
    """Note how the tables of a run's corpus are read, a detail."""
    if config.source is config.corpus:
        detail(*corpus_notes(config.corpus))


def metric_values(metric: str | Task, data: str | Path | None = None) -> dict[str, Any]:
    """Return the values of a space that ranks trials by a metric, or by the validation score of probes on a task.

    Args:
        metric: A metric, or a task: its name, its file, or a `Task`. With `document_accuracy`, trials report it.
        data: Folder of task files.

    Raises:
        RaysentError: If it is neither, or the task's files are missing or wrong.
    """
    if metric == "document_accuracy":
        return {"metric": metric, "validation.documents": NUM_DOCUMENTS}
    if metric in METRICS:
        return {"metric": metric}
    folder = None if data is None else Path(data)
    try:
        tasks = resolve_tasks([metric], folder, scorings=VALIDATED, option="metric ")
    except ConfigError:
        near = get_close_matches(str(metric), METRICS, n=1)
        if not near or Path(str(metric)).suffix:
            raise
        raise ConfigError(
            f"metric {metric}: unknown metric or task; did you mean '{near[0]}'?"
        ) from None
    specs = [task.spec for task in tasks]
    values: dict[str, Any] = {"metric": "downstream", "validation.downstream.tasks": specs}
    if any(task.files for task in tasks):
        return values | {
            "validation.downstream.data": None if folder is None else str(folder.resolve())
        }
    return values | {"evaluation.tasks": specs}


def run_folder_of(run: str | Path | None, name: str) -> Path:
    """Return the run folder that is named, else one of today's date."""
    return default_run_folder(name) if run is None else open_folder(run)


def default_run_folder(name: str) -> Path:
    """Return the run folder of a space if none is named."""
    return Path("runs") / safe_name(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")


def view_of(space: SearchSpace, folder: Path, *, progress: bool) -> SweepView:
    """Return what shows a sweep as it runs; a submitted one is shown where it is followed."""
    is_quiet = not progress or messages.quiet or is_submitted()
    return SweepView(messages, space, folder=folder, is_quiet=is_quiet)


def default_space(
    tasks: Sequence[str | Task] | None, options: SpaceOptions = _NOTHING_SET
) -> SearchSpace:
    """Return the space of a sweep that is given tasks and no space, with a reason for what was chosen.

    The text is by default that of the tasks' training rows, each row a document.

    Args:
        tasks: Tasks, as for `sweep`.
        options: What the caller sets.

    Raises:
        ConfigError: If no task is named, or none has rows of its own to train on.
        DataError: If a task's files are wrong.
    """
    if not tasks:
        raise ConfigError(
            "space: must be a search space, or a task must be given, as in raysent sweep --task reviews.csv"
        )
    names = options.names
    reasons: dict[str, str] = {}
    is_table_alone = False
    if options.corpus is None and "corpus.path" not in names:
        rows = _training_rows(tasks, options.data)
        is_table_alone = all(isinstance(of_task, TaskData) for of_task in rows)
        corpus, reasons["corpus"] = _text_of(rows)
        values = {"corpus.format": "text", **(options.set or {})}
        options = replace(options, corpus=corpus, set=values)
    settings, limit_reasons = _default_limits(names, is_table_alone=is_table_alone)
    typed = {name: value for name, value in options.settings.items() if value is not None}
    options = replace(options, settings={**typed, **settings})
    reasons |= limit_reasons
    space = space_of(SPACE, options)
    language = corpus_language(space.config(space.first_params()).corpus)
    if "vocabulary.type" not in names and language != "en":
        space = with_overrides(
            space, [Override("base.vocabulary.type", "auto", "the text's language")]
        )
    has_metric = options.metric is not None or "metric" in names
    if not has_metric or not space.limits.trials:
        space = _named_after(space, tasks_of(space, tasks, options.data), has_metric=has_metric)
    return with_overrides(space, [Override("fitted", reasons, "tasks")])


def _training_rows(
    tasks: Sequence[str | Task], data: str | Path | None
) -> list[TaskData | RetrievalData]:
    """Return the rows of those tasks that have their own; embedded tasks have those of installed packages.

    Raises:
        ConfigError: If none has.
    """
    folder = None if data is None else Path(data)
    loaded = [
        load_task(task, folder, with_test=False) if task.scoring in PROBED else task.load(folder)
        for task in resolve_tasks(tasks, folder, scorings=VALIDATED)
        if task.files or isinstance(task, OwnTask)
    ]
    rows = [
        divided(of_task) if isinstance(of_task, TaskData) else of_task
        for of_task in loaded
        if not isinstance(of_task, SimilarityData)
    ]
    if not rows:
        raise ConfigError(
            f"corpus: must be given; {', '.join(map(str, tasks))} has no table of rows to train on"
        )
    return rows


def _default_limits(
    names: frozenset[str], *, is_table_alone: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the limits of a sweep of tasks whose user sets none, and the reason of each by its dotted name."""
    limits: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    if not names & {f"{section}.{name}" for section in ("limits", "cost") for name in _ENDS}:
        limits["time"] = TIME
        reasons["limits.time"] = "for training; no other limit is given"
    if "limits.trials" in names:
        return limits, reasons
    limits["trials"] = 0 if is_table_alone else TRIALS
    reasons["limits.trials"] = "of all families in turn"
    if is_table_alone:
        reasons["limits.trials"] = (
            "rows are no running text, on which encoders learn; --corpus TEXT or --trials N trains some"
        )
        if "limits.time" in reasons:
            reasons["limits.time"] = "fits of TF-IDF take half of it at most"
    return limits, reasons


def _named_after(space: SearchSpace, tasks: TaskSet, *, has_metric: bool) -> SearchSpace:
    """Return a space that ranks trials by the tasks where no metric is set, and has a table's name without trials."""
    overrides = []
    ranking = None if has_metric else ranking_tasks(space, tasks)
    if ranking is not None:
        values = ranking.model_dump(exclude_none=True)
        overrides.append(Override("validation.downstream", values, "tasks"))
    if not space.limits.trials:  # nothing of the space is used but how the answer is chosen
        overrides.append(Override("name", _space_name(tasks.names[0]), "tasks"))
    return with_overrides(space, overrides) if overrides else space


def _space_name(task: str) -> str:
    """Return the name of a sweep of a table alone: that of the table, as a space may be called."""
    letters = re.sub(r"[^\w .+=-]", "-", task)[:99].lstrip(" .+=-")
    return letters or SPACE


def swept_space(
    space: Space | None,
    tasks: Sequence[str | Task] | None = None,
    options: SpaceOptions = _NOTHING_SET,
) -> SearchSpace:
    """Return the space of a sweep, whose first trials may be taught; without a space that of the tasks."""
    checked = default_space(tasks, options) if space is None else space_of(space, options)
    overrides = lesson_overrides(checked)
    return with_overrides(checked, overrides) if overrides else checked


def start_of(model: str | Path) -> tuple[dict[str, Any], str, int]:
    """Return the settings of a run that starts with a model, the type of its encoder, and its towers.

    Args:
        model: Folder of a training, or a pretrained encoder by its folder or name.

    Raises:
        ArtifactError: If there is no such training and no such encoder.
    """
    name = with_scheme(str(model))
    if name.startswith(PRETRAINED_SCHEMES):
        path = split_path(name)[1] or ""
        find_encoder(path, has_weights=False, where=name)
        encoder = {"type": "pretrained", "path": path, "dropout": _DROPOUT}
        return {"encoder": encoder}, "pretrained", 1
    folder = open_folder(model)
    trained = model_folder(folder)
    if trained is None:
        raise missing_model(folder, "no training and no pretrained encoder")
    known = read_record(trained).config
    kind = known.encoder.type
    start: dict[str, Any] = {
        "initial": str(trained),
        "encoder": {} if kind == "concat" else {"dropout": _DROPOUT},
    }
    if known.code is not None:  # what is trained has bits too, or is refused
        start["code"] = known.code.model_dump(mode="json")
    return start, kind, len(known.towers)


def take_along(space: SearchSpace, folder: Path) -> SearchSpace:
    """Return a space whose text, where it was made of tasks' rows, is in the run's folder and not in the cache."""
    path = Path(str(space.setting("corpus.path") or ""))
    if path.parent != cache_folder() / _FOLDER:
        return space
    with atomic_write(folder / _FILE) as copy:
        shutil.copyfile(path, copy)
    return with_overrides(
        space, [Override("base.corpus.path", str((folder / _FILE).resolve()), "corpus")]
    )


def _text_of(tasks: Sequence[TaskData | RetrievalData]) -> tuple[Path, str]:
    """Write tasks' passages and the texts of their training rows, each once; returns the file, and why it is read."""
    found = (
        text
        for data in tasks
        for text in (
            data.passages
            if isinstance(data, RetrievalData)
            else (column[row] for row in data.train.tolist() for column in data.sentences)
        )
    )
    texts = dict.fromkeys(text for text in found if text.strip())
    # In an order that has nothing to do with labels, by which many tables are sorted.
    ordered = sorted(texts, key=content_key)
    path = cache_folder() / _FOLDER / f"{content_key(ordered)}.jsonl"
    if not path.exists():
        with atomic_write(path) as new:
            new.write_text(
                "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in ordered),
                "utf-8",
            )
    names = ", ".join(data.task for data in tasks)
    return path, f"the text of {names}: {len(ordered):,} training texts, none of the rows that test"
