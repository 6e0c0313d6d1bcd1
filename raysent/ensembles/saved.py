"""A saved ensemble: `ensemble.json` names its members and their shares; loaded, it encodes and predicts.

`encode` gives the representation ensemble: members' vectors one after another, every block of unit length.
`predict` gives the ensemble of answers: every member's own probe, combined as it was fitted on the task.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysent.ensembles.combination import Combination, read_combination
from raysent.ensembles.combined import EnsembleResult
from raysent.ensembles.predictions import Float64
from raysent.ensembles.representations import Concatenation
from raysent.errors import ArtifactError, ConfigError, did_you_mean
from raysent.evaluation.members import REFERENCE, ensemble_members, folder_name, model_key
from raysent.evaluation.probes.features import features_of
from raysent.evaluation.records import Record, read_record
from raysent.models import load as load_model
from raysent.models.sentence_encoder import Float32, SentenceEncoder
from raysent.storage import read_json, write_json
from raysent.storage.layout import ENSEMBLE_FILE, EVALUATION_FOLDER

KIND = "raysent ensemble"


@dataclass(frozen=True)
class SavedMember:
    """One member of a saved ensemble.

    Attributes:
        name: Its name, and that of its folder of records.
        encoder: The model.
    """

    name: str
    encoder: SentenceEncoder


class SentenceEnsemble(SentenceEncoder):
    """Several encoders as one."""

    def __init__(self, members: Sequence[SavedMember], *, folder: Path, tasks: dict[str, Any]) -> None:
        """Take loaded members, the folder of `ensemble.json`, and its tasks' weights and keys."""
        self.members = tuple(members)
        self._folder = folder
        self._tasks = tasks
        self._vectors = Concatenation([member.encoder for member in self.members])

    @property
    def tasks(self) -> list[str]:
        """The tasks that it can predict."""
        return list(self._tasks)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence: all members'."""
        return self._vectors.get_sentence_embedding_dimension()

    def encode(self, sentences: list[str], *, batch_size: int = 512, normalize_embeddings: bool = False) -> Float32:
        """Return the members' unit vectors one after another, float32 [sentences, dim]; see `SentenceEncoder`."""
        return self._vectors.encode(sentences, batch_size=batch_size, normalize_embeddings=normalize_embeddings)

    def predict_log_probabilities(self, task: str, *columns: list[str]) -> Float64:
        """Return the pool's log-probabilities, float64 [rows, classes]; classes in the order of `label_names`.

        Args:
            task: A task that the ensemble was made on.
            columns: The sentences [rows]; for a task of pairs, two such lists.

        Raises:
            ConfigError: If the ensemble was not made on that task, or the task needs another number of columns.
            ArtifactError: If a member's record of the task is missing or not the one the ensemble was made from.
        """
        records = self._records(task)
        expected = 1 if records[0].kind == "sentence" else 2
        if len(columns) != expected or len({len(column) for column in columns}) != 1:
            raise ConfigError(f"{task}: needs {expected} list(s) of equally many sentences; given {len(columns)}")
        kind, answers = records[0].kind, []
        for member, record in zip(self.members, records, strict=True):
            answers.append(record.probe.log_probabilities(features_of(member.encoder, columns, kind=kind)))
        return self._combination(task)(np.stack(answers))

    def predict(self, task: str, *columns: list[str]) -> list[str]:
        """Return each row's likeliest class by name; arguments as for `predict_log_probabilities`."""
        names = self.label_names(task)
        return [names[best] for best in self.predict_log_probabilities(task, *columns).argmax(axis=1)]

    def _combination(self, task: str) -> Combination:
        path = f"{self._folder / ENSEMBLE_FILE}: {task}"
        return read_combination(self._tasks[task].get("combination", {}), source=path)

    def label_names(self, task: str) -> tuple[str, ...]:
        """Return the names of a task's classes."""
        return self._records(task)[0].label_names

    def _records(self, task: str) -> list[Record]:
        """Return the members' records that the ensemble was made from."""
        if task not in self._tasks:
            raise ConfigError(f"{task}: the ensemble was not made on this task{did_you_mean(task, self._tasks)}")
        records = []
        for member in self.members:
            folder = self._folder / EVALUATION_FOLDER / folder_name(member.name)
            record = read_record(folder, task, key=self._tasks[task]["keys"][member.name])
            if record is None:
                raise ArtifactError(
                    f"{folder / task}.json: missing or changed since the ensemble was made; make it again"
                )
            records.append(record)
        return records


def load_ensemble(folder: Path) -> SentenceEnsemble:
    """Load a saved ensemble and its members.

    Args:
        folder: The folder of `ensemble.json`.

    Raises:
        ArtifactError: If a file is missing, of another kind, or a member changed since the ensemble was made.
    """
    path = folder / ENSEMBLE_FILE
    about = read_json(path)
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise ArtifactError(f"{path}: not an ensemble of this version of raysent; make it again")
    members = []
    for name, member_path in zip(about["members"], ensemble_members(folder), strict=True):
        if model_key(member_path) != about["keys"][name]:
            raise ArtifactError(f"{path}: member '{name}' changed since the ensemble was made; make it again")
        members.append(SavedMember(name, load_model(member_path)))
    return SentenceEnsemble(members, folder=folder, tasks=about["tasks"])


def write_ensemble(combined: EnsembleResult, by_task: Sequence[Sequence[Record]]) -> None:
    """Write `ensemble.json`.

    Args:
        combined: The ensemble.
        by_task: The members' records it was made from, per task.

    Raises:
        ArtifactError: If it cannot be written.
    """
    about = combined.plain()
    for task, records in zip(combined.tasks, by_task, strict=True):
        about["tasks"][task.task] |= {
            "combination": task.final.combination.plain(),
            "keys": {name: record.key for name, record in zip(combined.names, records, strict=True)},
            "row_hash": records[0].row_hash,
            "label_names": list(records[0].label_names),
        }
    paths = {member.name: relative_path(member.path, combined.path.parent) for member in combined.members}
    keys = {member.name: member.key for member in combined.members}
    write_json(combined.path, {"kind": KIND, "paths": paths, "keys": keys, **about})


def relative_path(path: str, folder: Path) -> str:
    """Return a member's path as `ensemble.json` in `folder` names it, so that a run's folder can be moved whole."""
    return path if path.startswith(REFERENCE) else os.path.relpath(Path(path).resolve(), folder.resolve())
