"""What predicts new rows of a task: models with their probes of it, and the combination of what they predict.

An ensemble predicts the tasks that it was made on. A single model predicts those that it was evaluated on: its record
holds the probe, which is an ensemble of one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np

from raysent.data.labels import LabelValue, label_value
from raysent.ensembles.calibration import Calibration, Promise
from raysent.ensembles.pools import Combination, LogarithmicPool
from raysent.ensembles.task_ensemble import calibration_of
from raysent.errors import ArtifactError, ConfigError, did_you_mean, listed
from raysent.evaluation.members import model_folder, model_key
from raysent.evaluation.own_layer import own_log_probabilities
from raysent.evaluation.probes.features import features_of
from raysent.evaluation.probes.lexical import predict_lexical
from raysent.evaluation.probes.results import predicted_scores
from raysent.evaluation.protocols.fast import DIVIDED
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
class Predictor:
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
        return 1 if self.records[0].kind == "sentence" else 2

    @property
    def is_scored(self) -> bool:
        """Whether a row gets a score, the mean of the rating levels, in place of a class."""
        return self.records[0].targets.is_scored

    @property
    def fitted_rows(self) -> UInt64:
        """Digests of the rows that fitted it after its score was known, uint64 [rows]; see `row_digests`."""
        digests = [record.arrays.get(FITTED_ROWS, NO_DIGESTS) for record in self.records]
        return np.unique(np.concatenate(digests))

    def as_scored(self) -> Predictor:
        """Return the predictor that its score is of: no test row has fitted it."""
        return replace(self, records=tuple(map(as_scored, self.records)))

    def log_probabilities(self, columns: Sequence[Texts]) -> Float64:
        """Return calibrated log-probabilities of rows, float64 [rows, classes]; see `of_members`."""
        combined = self.combined(columns)
        return combined if self.calibration is None else self.calibration(combined)

    def combined(self, columns: Sequence[Texts]) -> Float64:
        """Return log-probabilities of rows as the members' combination has them, float64 [rows, classes]."""
        predicted = self.of_members(columns)
        return (
            self.combination(predicted) if predicted.shape[1] else predicted[0].astype(np.float64)
        )

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
        return np.stack(
            [_predicted(*one, texts) for one in zip(self.members, self.records, strict=True)]
        )

    def answers(
        self, log_probabilities: Float64, threshold: float = 0.0
    ) -> list[LabelValue | None] | list[float]:
        """Return the most probable class of each row [rows, classes], as the table has it; of rated pairs the rating.

        A rating is the mean of the levels. Rows of a confidence below the threshold have no answer.
        """
        if self.is_scored:
            return self._scores(log_probabilities)
        values = self.label_values
        places = self.classes(log_probabilities, threshold)
        return [None if place is None else values[place] for place in places]

    def classes(self, log_probabilities: Float64, threshold: float = 0.0) -> list[int | None]:
        """Return the place of the most probable class of each row; None for rows below the threshold."""
        best = log_probabilities.argmax(axis=1).tolist()
        if not threshold:
            return [*best]
        is_sure = log_probabilities.max(axis=1, initial=-np.inf) >= np.log(threshold)
        return [
            place if is_answered else None for place, is_answered in zip(best, is_sure, strict=True)
        ]

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
            name = "coverage" if precision is None else "precision"
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
        return own_log_probabilities(encoder, columns[0])
    return record.probe.log_probabilities(features_of(encoder, columns, kind=record.kind))


class Predictors(Mapping[str, Predictor]):
    """What predicts each task, made at its first use."""

    def __init__(self, tasks: Sequence[str], make: Callable[[str], Predictor]) -> None:
        """Take the tasks, and what makes the predictor of one."""
        self._tasks, self._make = tuple(tasks), cache(make)

    def __getitem__(self, task: str) -> Predictor:
        if task not in self._tasks:
            raise KeyError(task)
        return self._make(task)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


def find_predictor(encoder: SentenceEncoder, task: str | None = None) -> Predictor:
    """Return what predicts a task by a model; None for the only one.

    Raises:
        ConfigError: If the model predicts none, several and none is named, or not this one.
    """
    known, name = encoder.predictors, encoder.source or type(encoder).__name__
    if not known:
        way = f"'raysent evaluate {shlex.quote(name)} --task FILE' fits what does"
        if is_scheme_name(name):
            way = f"'raysent ensemble {shlex.quote(name)} --task FILE -o FOLDER' makes a model that does"
        raise ConfigError(f"{name}: predicts no task; {way}")
    if task is None:
        if len(known) > 1:
            raise ConfigError(f"task: must be named for {name}; it predicts {listed(known)}")
        task = next(iter(known))
    if not isinstance(task, str):
        given = type(task).__name__
        raise ConfigError(
            f"task: must be the name of a task, before its texts: {listed(known)}; given {given}"
        )
    if task not in known:
        raise ConfigError(
            f"{task:.100}: {name} was not made on this task{did_you_mean(task, known)}"
        )
    found: Predictor = known[task]
    return found


def split_arguments(
    encoder: SentenceEncoder, given: Sequence[Texts], task: str | None
) -> tuple[Predictor, list[Texts]]:
    """Return what predicts, and the columns of texts, of the arguments of `predict`.

    The first of them may be the task's name. Where a model has one task, as many arguments as it has columns are texts.

    Raises:
        ConfigError: As `find_predictor`.
    """
    if task is None:
        only = next(iter(encoder.predictors.values())) if len(encoder.predictors) == 1 else None
        if given and (only is None or len(given) != only.num_columns):
            return find_predictor(encoder, cast("str", given[0])), list(given[1:])
    return find_predictor(encoder, task), list(given)


def recorded(encoder: SentenceEncoder) -> Mapping[str, Predictor]:
    """Return what predicts the tasks that a single model was evaluated on, by task; empty if it was on none.

    The records are those of its own folder, then those of the sweep that it is a trial of. To look one up raises an
    `ArtifactError` if it is damaged.
    """
    folder = (
        None
        if encoder.source is None or is_scheme_name(encoder.source)
        else open_folder(encoder.source)
    )
    if folder is None or model_folder(folder) is None:
        return {}
    key = model_key(str(folder))
    places: dict[str, Path] = {}
    for place in _record_folders(folder):
        for path in sorted(place.glob("*.json")):
            if path.stem not in places and is_record_of(place, path.stem, key):
                places[path.stem] = place

    def predictor_of(task: str) -> Predictor:
        record = read_record(places[task], task)
        if record is None:
            raise ArtifactError(
                f"{address_of(places[task] / task)}.json: removed since it was found; evaluate again"
            )
        return Predictor(
            (encoder,),
            (record,),
            LogarithmicPool(np.ones(1)),
            calibration_of([record], method="uniform"),
        )

    return Predictors(list(places), predictor_of)


def _record_folders(folder: Path) -> Iterator[Path]:
    places = sorted((folder / EVALUATION_FOLDER).glob("*/"))
    if folder.parent.name == TRIALS_FOLDER:
        places += sorted((folder.parent.parent / EVALUATION_FOLDER).glob(f"*{folder.name}/"))
    yield from (record_folder(place, protocol) for protocol in _PROTOCOLS for place in places)
