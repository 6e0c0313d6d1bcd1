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
    soup_folder = run / SOUP_FOLDER
    taster = replace(evaluator, output=soup_folder / EVALUATION_FOLDER)
    by_start: dict[str, list[Member]] = {}
    for member in sorted(records, key=lambda member: -_validation(records[member])):
        start = _start_of(member)
        if start:
            by_start.setdefault(start, []).append(member)
    best_soup: tuple[Member, list[Record]] | None = None
    for first, *further in by_start.values():
        parts = [first]
        best = _validation(records[first])
        for candidate in further:
            name = "-".join(["soup", *(part.name for part in parts), candidate.name])
            path = soup_folder / f"{len(parts)}-{content_key(name)[:8]}"
            _write(path, [*parts, candidate])
            soup = Member(name, str(path), model_key(str(path)))
            soup_records = taster.records([soup], tasks)[soup]
            score = _validation(soup_records)
            if score > best:
                parts.append(candidate)
                best = score
                if best_soup is None or best > _validation(best_soup[1]):
                    best_soup = (soup, soup_records)
    # Soups that were tried, by an earlier command too, are removed; what a user put there stays.
    for path in soup_folder.glob("*-*"):
        is_soup = _OWN_NAME.fullmatch(path.name) is not None and (path / MODEL_FILE).is_file()
        if is_soup and (best_soup is None or str(path) != best_soup[0].path):
            remove_folder(path, below=soup_folder)
    return best_soup


def _validation(records: Sequence[Record]) -> float:
    return float(np.mean([record.validation for record in records]))


def _start_of(member: Member) -> str:
    """Return a key of the model that a training began with, and of the shapes of what it trained; empty without one."""
    folder = model_folder(Path(member.path))
    if folder is None or member.encoder is not None or not (Path(member.path) / RUN_FILE).is_file():
        return ""
    run: dict[str, Any] = read_json(Path(member.path) / RUN_FILE)["config"]
    model = SentenceModel.load(folder)
    # Dropout changes no shape, so trainings may differ in it.
    towers = [{**tower.model_dump(mode="json"), "dropout": None} for tower in model.config.towers]
    paths = [tower.get("path") for tower in towers]
    initial = run.get("initial")
    has_start = bool(initial) or all(paths)
    if model.code is not None or model.postprocessing.is_fitted_to_text or not has_start:
        return ""
    start: object = paths
    if initial is not None:
        start = model_key(str(open_folder(initial)))
    shapes = {name: list(tensor.shape) for name, tensor in _encoder_tensors(model).items()}
    return content_key(start, towers, shapes, file_sha256(folder / VOCABULARY_FILE))


def _encoder_tensors(model: SentenceModel) -> dict[str, torch.Tensor]:
    tensors = model.kept_tensors()
    return {name: tensors[name] for name in tensors if not name.startswith(_OBJECTIVE)}


def _write(folder: Path, members: Sequence[Member]) -> None:
    """Save the mean of models; whatever is not the encoder's is that of the first."""
    soup, *further = [SentenceModel.load(Path(member.path)) for member in members]
    further_tensors = [_encoder_tensors(model) for model in further]
    for name, tensor in _encoder_tensors(soup).items():
        stacked = torch.stack([tensor, *(tensors[name] for tensors in further_tensors)])
        tensor.copy_(stacked.double().mean(dim=0))
    for model in further:
        soup.learned_tasks = {**model.learned_tasks, **soup.learned_tasks}
    soup.save(folder)
    write_json(folder / RUN_FILE, read_json(Path(members[0].path) / RUN_FILE))
