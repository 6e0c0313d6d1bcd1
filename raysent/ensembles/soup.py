"""A soup: one model whose weights are the mean of those of several trainings that began with one model.

    soup_1     = the best training by validation
    soup_{k+1} = the mean of soup_k's trainings and the next best one, if its validation score is higher; else soup_k

It takes the time and the size of one model. Weights are averaged where trainings have one start, from which their paths
stay near each other: `initial`, or one pretrained folder, with the same encoders. Others, from random values of their
own, have no mean that means something, and fitted postprocessing and codes have none either; they are left out.

Source: Wortsman et al., 2022, recipe 1 (greedy soup); here a training joins only if it gains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Member, model_folder, model_key
from raysent.evaluation.records import Record
from raysent.evaluation.task import Task
from raysent.models import SentenceModel
from raysent.storage import (
    content_key,
    file_sha256,
    open_folder,
    read_json,
    remove_folder,
    write_json,
)
from raysent.storage.layout import (
    EVALUATION_FOLDER,
    MODEL_FILE,
    RUN_FILE,
    SOUP_FOLDER,
    VOCABULARY_FILE,
)

# Not the encoder's: each training has its own.
_OBJECTIVE = "objectives."
# How many trainings a soup is of, and a hash of the last one's name.
_OWN_NAME = re.compile(r"\d+-[0-9a-f]{8}")


def save_soup(
    records: Mapping[Member, Sequence[Record]],
    evaluator: Evaluator,
    *,
    run: Path,
    tasks: Sequence[str | Task] | None = None,
) -> tuple[Member, list[Record]] | None:
    """Average trainings that began with one model, and save the model if its validation score is above the best's.

    Args:
        records: The trainings' records on each task.
        evaluator: Evaluates each soup that is tried; their records are kept beside the soup.
        run: The run's folder; the soup is in its folder `soup`.
        tasks: As for `Evaluator.records`.

    Returns:
        The soup, whose name says of which trainings it is made, and its records; of several starts the best soup; None
        where no two trainings share a start, or no mean is better than its best training.

    Raises:
        RaysentError: If a model cannot be read or evaluated, or the folder cannot be written.
    """
    place = run / SOUP_FOLDER
    taster = replace(evaluator, output=place / EVALUATION_FOLDER)
    by_start: dict[str, list[Member]] = {}
    for member in sorted(records, key=lambda one: -_validation(records[one])):
        if start := _start_of(member):
            by_start.setdefault(start, []).append(member)
    found: tuple[Member, list[Record]] | None = None
    for first, *others in by_start.values():
        names, parts, best = [first.name], [first], _validation(records[first])
        for other in others:
            name = "-".join(["soup", *names, other.name])
            path = place / f"{len(names)}-{content_key(name)[:8]}"
            _write(path, [*parts, other])
            soup = Member(name, str(path), model_key(str(path)))
            tasted = taster.records([soup], tasks)[soup]
            if _validation(tasted) > best:
                names, parts, best = [*names, other.name], [*parts, other], _validation(tasted)
                if found is None or best > _validation(found[1]):
                    found = soup, tasted
    for path in place.glob("*-*"):
        is_own = _OWN_NAME.fullmatch(path.name) is not None and (path / MODEL_FILE).is_file()
        if is_own and (found is None or str(path) != found[0].path):
            remove_folder(path, below=place)
    return found


def _validation(records: Sequence[Record]) -> float:
    return float(np.mean([record.validation for record in records]))


def _start_of(member: Member) -> str:
    """Return a key of the model that a training began with, and of the shapes of what it trained; empty without one."""
    folder = model_folder(Path(member.path))
    if folder is None or member.encoder is not None or not (Path(member.path) / RUN_FILE).is_file():
        return ""
    run: dict[str, Any] = read_json(Path(member.path) / RUN_FILE)["config"]
    model = SentenceModel.load(folder)
    towers = [{**tower.model_dump(mode="json"), "dropout": None} for tower in model.config.towers]
    paths = [tower.get("path") for tower in towers]
    if (
        model.code is not None
        or model.postprocessing.is_fitted_to_text
        or not (run.get("initial") or all(paths))
    ):
        return ""
    start = paths if run.get("initial") is None else model_key(str(open_folder(run["initial"])))
    shapes = {name: list(value.shape) for name, value in _encoder_values(model).items()}
    return content_key(start, towers, shapes, file_sha256(folder / VOCABULARY_FILE))


def _encoder_values(model: SentenceModel) -> dict[str, torch.Tensor]:
    return {
        name: value
        for name, value in model.kept_tensors().items()
        if not name.startswith(_OBJECTIVE)
    }


def _write(folder: Path, members: Sequence[Member]) -> None:
    """Save the mean of models; whatever is not the encoder's is that of the first."""
    models = [SentenceModel.load(Path(member.path)) for member in members]
    soup, others = models[0], [_encoder_values(model) for model in models[1:]]
    for name, value in _encoder_values(soup).items():
        value.copy_(torch.stack([value, *(one[name] for one in others)]).double().mean(dim=0))
    for model in models[1:]:
        soup.learned_tasks = {**model.learned_tasks, **soup.learned_tasks}
    soup.save(folder)
    write_json(folder / RUN_FILE, read_json(Path(members[0].path) / RUN_FILE))
