"""What predicts new rows of a task: models with their probes of it, and the combination of what they predict.

An ensemble predicts the tasks that it was made on. A single model predicts those that it was evaluated on: its record
holds the probe, which is an ensemble of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from raysent.data.labels import LabelValue, label_value
from raysent.ensembles.calibration import Calibration, Promise
from raysent.ensembles.pools import Combination, LogarithmicPool
from raysent.ensembles.task_ensemble import calibration_of
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.members import model_folder, model_key
from raysent.evaluation.probes.features import features_of
from raysent.evaluation.probes.lexical_features import predict_lexical
from raysent.evaluation.probes.results import predicted_scores
from raysent.evaluation.protocols import DIVIDED
from raysent.evaluation.records import Record, is_record_of, read_record, record_folder
from raysent.evaluation.refit import FITTED_ROWS, NO_DIGESTS, UInt64, as_scored
from raysent.evaluation.targets import Float64
from raysent.models.schemes import is_scheme_name
from raysent.models.schemes.tfidf import LexicalModel
from raysent.models.sentence_encoder import SentenceEncoder, Texts, as_sentences
from raysent.storage import address_of, open_folder
from raysent.storage.layout import EVALUATION_FOLDER, TRIALS_FOLDER

# Protocols whose records hold a probe and its predictions; the first is preferred.
_PROTOCOLS = (DIVIDED, "fast")


@dataclass(frozen=True, eq=False)
class TaskPredictor:
    """Predicts one task.

    Attributes:
        members: The models.
        records: Their records of the task, in the same order.
        combination: What combines their log-probabilities.
        calibration: What makes the result true, and thresholds; None for rated pairs.
    """

    members: tuple[SentenceEncoder, ...]
    records: tuple[Record, ...]
    combination: Combination
    calibration: Calibration | None

    @property
    def task(self) -> str:
        """The task's name."""
        return self.records[0].task

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the classes [classes]; of rated pairs those of the rating levels."""
        return self.records[0].label_names

    @property
    def label_values(self) -> tuple[LabelValue, ...]:
        """The classes as the table has them [classes]: numbers and truth values of such labels, else their names."""
        kind = self.records[0].label_kind
        return tuple(label_value(name, kind) for name in self.label_names)

    @property
    def num_columns(self) -> int:
        """Texts of a row: one, or two of pairs."""
        if self.records[0].kind == "sentence":
            return 1
        return 2

    @property
    def is_scored(self) -> bool:
        """Whether a row gets a score, the mean of the rating levels, in place of a class."""
        return self.records[0].targets.is_scored

    @property
    def fitted_rows(self) -> UInt64:
        """Digests of the rows that fitted it after its score was known, uint64 [rows]; see `row_digests`."""
        digests = [record.arrays.get(FITTED_ROWS, NO_DIGESTS) for record in self.records]
        return np.unique(np.concatenate(digests))

    def as_scored(self) -> TaskPredictor:
        """Return the predictor that its score is of: no test row has fitted it."""
        return replace(self, records=tuple(map(as_scored, self.records)))

    def log_probabilities(self, columns: Sequence[Texts]) -> Float64:
        """Return calibrated log-probabilities of rows, float64 [rows, classes]; see `of_members`."""
        combined = self.combined(columns)
        if self.calibration is None:
            return combined
        return self.calibration(combined)

    def combined(self, columns: Sequence[Texts]) -> Float64:
        """Return log-probabilities of rows as the members' combination has them, float64 [rows, classes]."""
        predicted = self.of_members(columns)
        if not predicted.shape[1]:
            # Without rows there is nothing to combine.
            empty: Float64 = predicted[0].astype(np.float64)
            return empty
        return self.combination(predicted)

    def of_members(self, columns: Sequence[Texts]) -> np.ndarray:
        """Return the log-probabilities of each member, [members, rows, classes].

        Args:
            columns: The texts [rows], of each column.

        Raises:
            ConfigError: If the task has another number of columns, or they differ in length.
            RaysentError: If a column is no string and no sequence of strings.
        """
        if len(columns) != self.num_columns:
            raise ConfigError(
                f"{self.task}: needs {self.num_columns} list(s) of equally many sentences; "
                f"given {len(columns):,}"
            )
        texts = tuple(as_sentences(column, name=f"{self.task}: sentences") for column in columns)
        lengths = [len(column) for column in texts]
        if len(set(lengths)) != 1:
            raise ConfigError(
                f"{self.task}: needs {self.num_columns} list(s) of equally many sentences; "
                f"given lists of {' and '.join(map(str, lengths))}"
            )
        if not texts[0]:
            return np.empty((len(self.members), 0, len(self.label_names)))
        predicted = []
        for encoder, record in zip(self.members, self.records, strict=True):
            predicted.append(_predicted(encoder, record, texts))
        return np.stack(predicted)

    def answers(
        self, log_probabilities: Float64, threshold: float = 0.0
    ) -> list[LabelValue | None] | list[float]:
        """Return the most probable class of each row [rows, classes], as the table has it; of rated pairs the rating.

        A rating is the mean of the levels. Rows of a confidence below the threshold have no answer.
        """
        if self.is_scored:
            return self._scores(log_probabilities)
        labels = self.label_values
        answers: list[LabelValue | None] = []
        for class_index in self.classes(log_probabilities, threshold):
            if class_index is None:
                answers.append(None)
            else:
                answers.append(labels[class_index])
        return answers

    def classes(self, log_probabilities: Float64, threshold: float = 0.0) -> list[int | None]:
        """Return the index of the most probable class of each row; None for rows below the threshold."""
        classes: list[int | None] = log_probabilities.argmax(axis=1).tolist()
        if not threshold:
            return classes
        is_sure = log_probabilities.max(axis=1, initial=-np.inf) >= np.log(threshold)
        for row in np.flatnonzero(~is_sure):
            classes[row] = None
        return classes

    def _scores(self, log_probabilities: Float64) -> list[float]:
        scores = predicted_scores(log_probabilities)
        scale = self.records[0].about.get("scale")
        if scale is not None:
            low, high = scale
            scores = low + (scores - 1) * (high - low) / (len(self.label_names) - 1)
        ratings: list[float] = scores.tolist()
        return ratings

    def promise(self, *, coverage: float | None = None, precision: float | None = None) -> Promise:
        """Return the threshold that answers a promised part of new rows, or with a promised precision.

        Raises:
            ConfigError: If both or none are given, one is out of range, no threshold reaches it, or the task's rows
                have scores.
        """
        if (coverage is None) == (precision is None):
            raise ConfigError("coverage and precision: must not both be given; name one")
        if self.calibration is None:
            name = "precision"
            if precision is None:
                name = "coverage"
            raise ConfigError(f"{name}: must be of a task with classes; {self.task} has scores")
        if precision is None:
            assert coverage is not None
            return Promise(
                self.calibration,
                self.calibration.for_coverage(coverage),
                f"{coverage:.0%} of rows answered",
            )
        return Promise(
            self.calibration,
            self.calibration.for_precision(precision),
            f"{precision:.1%} of answers right",
        )


def _predicted(
    encoder: SentenceEncoder, record: Record, columns: tuple[list[str], ...]
) -> np.ndarray:
    if isinstance(encoder, LexicalModel):
        return predict_lexical(
            encoder, record.probe, dict(record.arrays), columns, kind=record.kind
        )
    if record.about.get("own_layer"):
        from raysent.evaluation.own_layer import own_log_probabilities  # noqa: PLC0415 - torch comes with it

        return own_log_probabilities(encoder, columns[0])
    return record.probe.log_probabilities(features_of(encoder, columns, kind=record.kind))


def recorded(encoder: SentenceEncoder) -> Mapping[str, Callable[[], TaskPredictor]]:
    """Return what makes the predictors of the tasks that a single model was evaluated on, by task; none if on no task.

    The records are those of its own folder, then those of the sweep that it is a trial of. To make one raises an
    `ArtifactError` if its record is damaged.
    """
    if encoder.source is None or is_scheme_name(encoder.source):
        return {}
    folder = open_folder(encoder.source)
    if model_folder(folder) is None:
        return {}
    key = model_key(str(folder))
    folders: dict[str, Path] = {}
    for records in _record_folders(folder):
        for path in sorted(records.glob("*.json")):
            if path.stem not in folders and is_record_of(records, path.stem, key):
                folders[path.stem] = records
    return {task: partial(_of_record, encoder, records, task) for task, records in folders.items()}


def _of_record(encoder: SentenceEncoder, records: Path, task: str) -> TaskPredictor:
    record = read_record(records, task)
    if record is None:
        raise ArtifactError(
            f"{address_of(records / task)}.json: removed since it was found; evaluate again"
        )
    return TaskPredictor(
        (encoder,),
        (record,),
        LogarithmicPool(np.ones(1)),
        calibration_of([record], method="uniform"),
    )


def _record_folders(folder: Path) -> Iterator[Path]:
    folders = sorted((folder / EVALUATION_FOLDER).glob("*/"))
    if folder.parent.name == TRIALS_FOLDER:
        folders += sorted((folder.parent.parent / EVALUATION_FOLDER).glob(f"*{folder.name}/"))
    yield from (record_folder(member, protocol) for protocol in _PROTOCOLS for member in folders)
