"""`distill`: one model learns what another, or an ensemble, returns.

Text and vocabulary of a student are by default those of the first of the teacher's members that records its training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysent import config as configuration
from raysent.config import Document, Override
from raysent.cost.config import parse_duration
from raysent.ensembles import FrontRow, read_result, student_front, write_front
from raysent.errors import ConfigError, TrainingError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand as expand_names
from raysent.evaluation.members import model_folder, part_paths
from raysent.evaluation.task import PROBED, Task
from raysent.evaluation.tasks import resolve_tasks
from raysent.models.schemes import encoder_name, is_scheme_name, missing_model, with_scheme
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.pipeline.arguments import overrides_of, run_folder_of
from raysent.pipeline.evaluation import map_jobs
from raysent.pipeline.results import Distilled, Sweep, write_report
from raysent.pipeline.static_students import INTO_STATIC, check_options, write_static
from raysent.pipeline.training import train_all
from raysent.progress import ProgressLines, messages
from raysent.storage import address_of, open_folder
from raysent.storage.layout import (
    COMPOSITION_FILE,
    ENSEMBLE_FILE,
    EVALUATION_FOLDER,
    FUSION_FILE,
    RUN_FILE,
)
from raysent.training.data import TrainingData, open_training_data
from raysent.training.loop import seconds_of_steps
from raysent.training.plan import open_stream
from raysent.training.run import RunConfig, load_run
from raysent.training.workers import Workers


def distill(  # noqa: PLR0913 - the options of the command
    teacher: str | Path | SentenceEncoder | Sweep,
    *,
    into: str | Mapping[str, Any] = "bag",
    dim: int | None = None,
    corpus: str | Path | None = None,
    tasks: Sequence[str | Task] | None = None,
    data: str | Path | None = None,
    epochs: float | None = None,
    time: str | None = None,
    set: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    seed: int = 0,
    address: str | None = None,
    progress: bool = True,
) -> Distilled:
    """Train a student that learns the vectors of a model or the joined vectors of an ensemble, on text without labels.

    ``into="static"`` makes a table of sub-words of a pretrained encoder instead, which needs no text; see
    `raysent.models.static`.

    The teacher encodes the text once; its vectors are kept in the cache. The student is a training like any other: its
    folder loads, resumes, evaluates, exports and joins ensembles, and does not need the teacher.

    Args:
        teacher: Folder of a training, a trial, a composition or an ensemble; what `load` returned for it; a sweep,
            whose best model with vectors teaches; or a name such as ``st:PATH``.
        into: The student's encoder: its type, such as ``bag``, ``cnn``, ``gru`` or ``transformer``, or its settings;
            or ``static``.
        dim: Size of the target, to which the teacher's vectors are projected; 1024 by default. Of a static table the
            size of its vectors; 256 by default.
        corpus: Text to train on; by default that of the teacher's first member.
        tasks: Tasks on which the loss of the projection is measured first, and on which the student is compared with
            its teacher in the end. A student of an ensemble also learns its log-probabilities on those that it was
            made on. By default none.
        data: Folder of task files in SentEval's layout.
        epochs: Passes over the text; 1 by default.
        time: Time of training instead, such as ``30m``: as many steps as fit, and ``training.max_steps`` at most.
        set: Dotted name -> value of the run, such as ``objective.max_loss``.
        output: The run folder; ``runs/distill-DATE`` by default. A training of the same student in it is resumed.
        seed: Seed of everything random.
        address: A running Ray cluster; by default this machine.
        progress: Whether to show progress on standard error.

    Returns:
        The student, its training, and where tasks are named, the front of score against time to encode.

    Raises:
        ConfigError: If a value is wrong, or the projection loses more than ``objective.max_loss``.
        TrainingError: If the loss is not finite.
        RaysentError: If the teacher, the text, a task or the folder cannot be used.
    """
    if into == INTO_STATIC:
        check_options({"corpus": corpus, "epochs": epochs, "time": time, "set": set or None})
    overrides = overrides_of(
        {
            "epochs": ("training.epochs", None if epochs is None else float(epochs)),
            "dim": ("objective.dim", dim),
        },
        set,
    )
    if time is not None and any(one.name == "training.epochs" for one in overrides):
        raise ConfigError("epochs: must be left out beside time, which decides how many there are")
    name, data_dir = _teacher_name(teacher), None if data is None else Path(data)
    chosen = [] if tasks is None else resolve_tasks(tasks, data_dir, scorings=PROBED)
    place = run_folder_of(output, "distill")
    if into == INTO_STATIC:
        write_static(name, place, dim=dim)
        return _compared(Distilled(place), name, chosen, data_dir, progress=progress)
    config = student_config(
        name,
        {
            "encoder": {"type": into} if isinstance(into, str) else dict(into),
            "objective": {
                "tasks": [task.spec for task in chosen] or None,
                "data": None if data is None else str(data),
            },
            "seed": seed,
        },
        corpus=None if corpus is None else str(corpus),
        overrides=overrides,
    )
    if time is not None:
        config = _within(config, time, place, progress=progress)
    (trained,) = train_all([config], "distill", run=place, address=address, progress=progress)
    if trained.outcome.status == "nan":
        raise TrainingError(f"{trained.address}: {trained.outcome.message}")
    made = Distilled(place, trained)
    return _compared(made, name, chosen, data_dir, progress=progress)


def _compared(
    made: Distilled, teacher: str, tasks: Sequence[Task], data: Path | None, *, progress: bool
) -> Distilled:
    """Return a student with its front on tasks, if there are any; a report is written again with it."""
    if not tasks:
        return made
    front = _student_front(made.folder, teacher, tasks, data, progress=progress)
    write_front(made.folder, front)
    if made.run is None:
        return replace(made, front=front)
    run = replace(made.run, report=write_report(made.folder))
    return replace(made, run=run, front=front)


def _teacher_name(teacher: str | Path | SentenceEncoder | Sweep) -> str:
    """Return the folder or the name of a teacher, as `load` takes it; refuse a model that was not loaded."""
    if not isinstance(teacher, SentenceEncoder):
        return str(
            encoder_name(
                teacher.folder if isinstance(teacher, Sweep) else teacher, say=messages.print
            )
        )
    if teacher.source is None:
        raise ConfigError("teacher: must have been loaded from a folder; name that folder")
    return teacher.source


def _within(config: RunConfig, time: str, folder: Path, *, progress: bool) -> RunConfig:
    try:
        seconds = parse_duration(time)
    except ConfigError as error:
        raise ConfigError(f"time: {error}") from None
    with ProgressLines(is_quiet=not progress) as bar:
        timed = within_time(
            config, open_training_data(config, progress=bar), seconds, folder=folder
        )
    if progress and (folder / RUN_FILE).is_file() and load_run(folder).key == timed.key:
        messages.print(
            f"{address_of(folder)} has begun and keeps its steps, whatever the time; -o NEW begins again"
        )
    return timed


def _student_front(
    folder: Path, teacher: str, tasks: Sequence[Task], data: Path | None, *, progress: bool
) -> tuple[FrontRow, ...]:
    members = teacher_members(teacher)
    place = open_folder(teacher) if not is_scheme_name(with_scheme(teacher)) else Path()
    method = read_result(place).method if (place / ENSEMBLE_FILE).is_file() else "validation"
    student, *others = expand_names([str(folder), *members])
    known = tuple(
        Path(one) / EVALUATION_FOLDER for one in (*members, str(place)) if Path(one).is_dir()
    )
    with ProgressLines(prefix="evaluating ", is_quiet=not progress) as bar:
        evaluator = Evaluator(
            folder / EVALUATION_FOLDER,
            data,
            progress=bar,
            map_jobs=map_jobs(),
            other_outputs=known,
            divides=True,
        )
        return student_front(student, evaluator.records([student, *others], tasks), method=method)


def teacher_members(teacher: str) -> list[str]:
    """Return the models that a teacher joins, as `load` takes them; a single model is its own member.

    Raises:
        ArtifactError: If there is no such folder, or a file of an ensemble or a composition is missing or of another
            kind.
    """
    teacher = with_scheme(teacher)
    if is_scheme_name(teacher):
        return [teacher]
    folder = open_folder(teacher)
    if model_folder(folder) is not None:
        return [str(folder)]
    if not any(
        (folder / name).is_file() for name in (COMPOSITION_FILE, ENSEMBLE_FILE, FUSION_FILE)
    ):
        raise missing_model(folder, "no such run or model")
    return part_paths(folder)


def student_config(
    teacher: str,
    values: dict[str, Any],
    *,
    corpus: str | None = None,
    overrides: Sequence[Override] = (),
) -> RunConfig:
    """Return the run of a student.

    Args:
        teacher: As `load` takes it.
        values: Parts of the run, such as `encoder` and `objective`.
        corpus: Text to train on; by default that of the teacher's members.
        overrides: Changed values of the run by dotted name.

    Raises:
        ConfigError: With the option, if a value is wrong; if no member records its text and none is given.
    """
    known = next(_recorded(teacher), None)
    found: dict[str, Any] = (
        {} if known is None else known.model_dump(mode="json", include={"corpus", "vocabulary"})
    )
    if corpus is not None:
        found["corpus"] = {"path": corpus, "cache_dir": found.get("corpus", {}).get("cache_dir")}
    chosen = {
        **found,
        **values,
        "objective": {"type": "distillation", "teacher": teacher, **values["objective"]},
    }
    document = Document(chosen).with_overrides(overrides)
    if not document.has("corpus"):
        raise ConfigError(
            f"corpus.path: must be set; no member of {teacher} records the text that it was trained on; "
            "name one as corpus"
        )
    return configuration.validate(RunConfig, document)


def _recorded(teacher: str) -> Iterator[RunConfig]:
    for member in teacher_members(teacher):
        places = [] if is_scheme_name(member) else [Path(member), Path(member).parent]
        for place in places:
            if (place / RUN_FILE).is_file():
                config = load_run(place)
                if config.source is config.corpus:
                    yield config


def within_time(
    config: RunConfig, training_data: TrainingData, seconds: float, *, folder: Path
) -> RunConfig:
    """Return a run with as many steps as fit into a time on this machine, from a few steps that are thrown away.

    The number of steps is part of the run's record, so that a run that is resumed in its folder keeps it.

    Args:
        config: The run.
        training_data: Its text.
        seconds: Time of training and validation.
        folder: The run folder.
    """
    if (folder / RUN_FILE).is_file():
        before = load_run(folder)
        if _with_steps(config, before.training.epochs, before.training.max_steps).key == before.key:
            return before
    per_step, per_report = seconds_of_steps(config, training_data)
    fitting = int((seconds - config.training.num_reports * per_report) / per_step)
    steps = max(1, min(fitting, config.training.max_steps or fitting))
    stream = open_stream(config, training_data, Workers())
    return _with_steps(config, -(-steps // stream.num_batches), steps)


def _with_steps(config: RunConfig, epochs: float, max_steps: int | None) -> RunConfig:
    training = config.training.model_copy(update={"epochs": float(epochs), "max_steps": max_steps})
    return config.model_copy(update={"training": training})
