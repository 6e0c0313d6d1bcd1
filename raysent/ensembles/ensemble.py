"""A saved ensemble: its members, loaded, and the combination that was fitted on each task.

`encode` returns the members' unit vectors one after another. `predict` combines the members' own probes of a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from raysent.ensembles.pools import read_combination
from raysent.ensembles.representations import Concatenation
from raysent.ensembles.result import EnsembleResult, read_result
from raysent.ensembles.task_ensemble import TaskEnsemble
from raysent.errors import ArtifactError, ConfigError, did_you_mean
from raysent.evaluation.members import ensemble_members, folder_name, model_key
from raysent.evaluation.probes.features import features_of
from raysent.evaluation.probes.lexical import predict_lexical
from raysent.evaluation.records import Record, read_record, record_folder
from raysent.evaluation.targets import Float64
from raysent.models import load as load_model
from raysent.models.schemes.tfidf import LexicalModel
from raysent.models.sentence_encoder import Float32, SentenceEncoder, Texts, as_sentences
from raysent.storage import address_of
from raysent.storage.layout import ENSEMBLE_FILE, EVALUATION_FOLDER


@dataclass(frozen=True)
class LoadedMember:
    """One member of a saved ensemble.

    Attributes:
        name: Its name, and that of its folder of records.
        encoder: The model.
    """

    name: str
    encoder: SentenceEncoder


class Ensemble(SentenceEncoder):
    """Several encoders as one.

    Attributes:
        folder: The folder of `ensemble.json` and of the members' records.
        result: What the ensemble is and what it scores.
        members: The members, in the order of `result.members`.
    """

    def __init__(self, members: Sequence[LoadedMember], *, folder: Path, result: EnsembleResult) -> None:
        """Join loaded members; `load_ensemble` does so from a folder."""
        self.folder, self.result = folder, result
        self.members = tuple(members)
        self._vectors = Concatenation([member.encoder for member in self.members])

    def __repr__(self) -> str:
        """Return the folder, the members and the tasks."""
        members, tasks = ", ".join(self.result.members), ", ".join(self.tasks)
        return f"Ensemble({address_of(self.folder)!r}, members: {members}; tasks: {tasks})"

    @property
    def tasks(self) -> list[str]:
        """The tasks that it can predict."""
        return list(self.result.tasks)

    @property
    def cannot_encode(self) -> str | None:
        """Why it has no vectors: a member has none."""
        lacking = next((member.name for member in self.members if member.encoder.cannot_encode), None)
        return lacking and (
            f"{address_of(self.folder)}: cannot encode, as its member {lacking} has no vectors of a fixed size; "
            f"it predicts {', '.join(self.tasks)}; to encode, name another member"
        )

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence, the sum over members; raises as `encode_texts`."""
        self._check_vectors()
        return self._vectors.get_sentence_embedding_dimension()

    @property
    def max_seq_length(self) -> int | None:
        """Tokens that some member reads of a longer sentence; None where one reads all."""
        lengths = [member.encoder.max_seq_length for member in self.members]
        return None if None in lengths else max(length for length in lengths if length is not None)

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return the members' unit vectors one after another, float32 [sentences, dim]; see `SentenceEncoder`.

        Raises:
            ConfigError: If a member has no vectors.
        """
        self._check_vectors()
        return self._vectors.encode_texts(sentences, batch_size=batch_size)

    def use_device(self, device: torch.device) -> None:
        """Move the members."""
        self._vectors.use_device(device)

    def _check_vectors(self) -> None:
        """Refuse to encode with a member that has no vectors."""
        if self.cannot_encode:
            raise ConfigError(self.cannot_encode)

    def predict(self, task: str, *columns: Texts) -> list[str]:
        """Return the name of each row's most probable class; arguments as for `predict_log_probabilities`."""
        names = self.label_names(task)
        return [names[best] for best in self.predict_log_probabilities(task, *columns).argmax(axis=1)]

    def predict_proba(self, task: str, *columns: Texts) -> Float64:
        """Return probabilities, float64 [rows, classes]; arguments as for `predict_log_probabilities`."""
        probabilities: Float64 = np.exp(self.predict_log_probabilities(task, *columns))
        return probabilities

    def predict_log_probabilities(self, task: str, *columns: Texts) -> Float64:
        """Return log-probabilities, float64 [rows, classes], with classes in the order of `label_names`.

        Args:
            task: A task that the ensemble was made on.
            columns: The sentences [rows]; two such sequences for a task of pairs. A single string is one row.

        Raises:
            ConfigError: If the ensemble was not made on that task, or the task needs another number of columns.
            RaysentError: If a column is no string and no sequence of strings.
            ArtifactError: If a member's record of the task is missing or was replaced since.
        """
        records = self._records(task)
        kind, expected = records[0].kind, 1 if records[0].kind == "sentence" else 2
        texts = tuple(as_sentences(column, name=f"{task}: sentences") for column in columns)
        if len(texts) != expected or len({len(column) for column in texts}) != 1:
            given = " and ".join(str(len(column)) for column in texts) or "none"
            raise ConfigError(f"{task}: needs {expected} list(s) of equally many sentences; given {given}")
        if not texts[0]:
            return np.empty((0, len(self.label_names(task))))
        predicted = [
            _predicted(member.encoder, record, texts, kind=kind)
            for member, record in zip(self.members, records, strict=True)
        ]
        source = f"{address_of(self.folder / ENSEMBLE_FILE)}: {task}"
        return read_combination(self._on(task).combination, source=source)(np.stack(predicted))

    def label_names(self, task: str) -> tuple[str, ...]:
        """Return the names of a task's classes.

        Raises:
            ConfigError: If the ensemble was not made on that task.
        """
        return self._on(task).label_names

    def _on(self, task: str) -> TaskEnsemble:
        if not isinstance(task, str):
            known = ", ".join(self.tasks)
            raise ConfigError(
                f"task: must be the name of a task, before its texts: {known}; given {type(task).__name__}"
            )
        found = self.result.tasks.get(task)
        if found is None:
            raise ConfigError(f"{task}: the ensemble was not made on this task{did_you_mean(task, self.tasks)}")
        return found

    def _records(self, task: str) -> list[Record]:
        keys, records = self._on(task).keys, []
        for member in self.members:
            folder = record_folder(self.folder / EVALUATION_FOLDER / folder_name(member.name), self.result.protocol)
            record = read_record(folder, task, key=keys[member.name])
            if record is None:
                raise ArtifactError(
                    f"{address_of(folder / task)}.json: missing or changed since the ensemble was made; make it again"
                )
            records.append(record)
        return records


def _predicted(encoder: SentenceEncoder, record: Record, columns: tuple[list[str], ...], *, kind: str) -> np.ndarray:
    """Return one member's log-probabilities of new rows, [rows, classes]."""
    if isinstance(encoder, LexicalModel):
        return predict_lexical(encoder, record.probe, dict(record.arrays), columns, kind=kind)
    return record.probe.log_probabilities(features_of(encoder, columns, kind=kind))


def load_ensemble(folder: Path) -> Ensemble:
    """Load a saved ensemble and its members.

    Args:
        folder: The folder of `ensemble.json`.

    Raises:
        ArtifactError: If a file is missing or of another kind, or a member changed since the ensemble was made.
    """
    result = read_result(folder)
    members = []
    for name, path in zip(result.members, ensemble_members(folder), strict=True):
        if model_key(path) != result.keys[name]:
            raise ArtifactError(
                f"{address_of(folder / ENSEMBLE_FILE)}: member '{name}' changed since the ensemble was made; "
                "make it again"
            )
        members.append(LoadedMember(name, load_model(path)))
    return Ensemble(members, folder=folder, result=result)
