"""The run of a student: an encoder that learns what a trained model, a composition or an ensemble returns.

In: a teacher and changed values. Out: a checked `RunConfig` with the objective `distillation`. Text and vocabulary are
by default those of the first of the teacher's members that records its training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from raysent import config as configuration
from raysent.config import Document, Override
from raysent.errors import ConfigError
from raysent.evaluation.members import model_folder, part_paths
from raysent.models.schemes import is_scheme_name, missing_model
from raysent.storage import open_folder
from raysent.storage.layout import RUN_FILE
from raysent.training.data import TrainingData
from raysent.training.loop import seconds_of_steps
from raysent.training.plan import open_stream
from raysent.training.run import RunConfig, load_run
from raysent.training.workers import Workers


def teacher_members(teacher: str) -> list[str]:
    """Return the models that a teacher joins, as `load` takes them; a single model is its own member.

    Raises:
        ArtifactError: If there is no such folder, or a file of an ensemble or a composition is missing or of another
            kind.
    """
    if is_scheme_name(teacher):
        return [teacher]
    folder = open_folder(teacher)
    if model_folder(folder) is not None:
        return [str(folder)]
    if not folder.exists():
        raise missing_model(folder, "no such run or model")
    return part_paths(folder)


def student_config(
    teacher: str, values: dict[str, Any], *, corpus: str | None = None, overrides: Sequence[Override] = ()
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
    found: dict[str, Any] = {} if known is None else known.model_dump(mode="json", include={"corpus", "vocabulary"})
    if corpus is not None:
        found["corpus"] = {"path": corpus, "cache_dir": found.get("corpus", {}).get("cache_dir")}
    chosen = {**found, **values, "objective": {"type": "distillation", "teacher": teacher, **values["objective"]}}
    document = Document(chosen).with_overrides(overrides)
    if "corpus" not in document.values:
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


def within_time(config: RunConfig, training_data: TrainingData, seconds: float, *, folder: Path) -> RunConfig:
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
    steps = max(1, int((seconds - config.training.num_reports * per_report) / per_step))
    stream = open_stream(config, training_data, Workers())
    return _with_steps(config, -(-steps // stream.num_batches), steps)


def _with_steps(config: RunConfig, epochs: float, max_steps: int | None) -> RunConfig:
    training = config.training.model_copy(update={"epochs": float(epochs), "max_steps": max_steps})
    return config.model_copy(update={"training": training})
