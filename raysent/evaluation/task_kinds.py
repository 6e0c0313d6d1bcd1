"""What a task's kind decides: how its rows are divided, what a record depends on, how a model is fitted and kept.

There is a class for each kind of rows, which `kind_of` finds; nothing else asks for the kind to score a model.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from raysent.data.same_text import is_blank
from raysent.data.unicode_form import OF_NEW, is_in_form
from raysent.errors import ConfigError, DataError
from raysent.evaluation.baselines import LEXICAL, is_pretrained
from raysent.evaluation.bootstrap import score_interval
from raysent.evaluation.division import divided
from raysent.evaluation.members import Member, model_key
from raysent.evaluation.own_layer import has_own_layer, layer_result, own_result
from raysent.evaluation.parts import fit_parts, has_parts, part_folders, without_learned
from raysent.evaluation.probes.features import Encode, task_features
from raysent.evaluation.probes.lexical import fit_lexical
from raysent.evaluation.probes.results import ProbeResult, balance_measures
from raysent.evaluation.protocols import DIVIDED, PROTOCOLS, check_rows, fit_probe
from raysent.evaluation.protocols.fast import scored_by_validation
from raysent.evaluation.records import (
    SIMILARITY,
    Costs,
    Record,
    SimilarityScore,
    costs_of,
    library_versions,
    read_record,
    read_score,
    write_record,
    write_score,
)
from raysent.evaluation.retrieval import (
    RETRIEVAL,
    RetrievalRecord,
    rank,
    read_retrieval,
    record_of,
    write_retrieval,
)
from raysent.evaluation.retrieval import VERSION as RETRIEVAL_VERSION
from raysent.evaluation.similarity import VERSION as SIMILARITY_VERSION
from raysent.evaluation.similarity import score_sets
from raysent.evaluation.targets import MIN_SCORED_ROWS, USUAL_STRENGTH
from raysent.evaluation.task import AnyData, RetrievalData, SimilarityData, Task, TaskData
from raysent.evaluation.task_files.queries import with_dev
from raysent.evaluation.vector_store import stored
from raysent.models import load as load_model
from raysent.models.schemes.tfidf import LexicalModel
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.progress import SECONDS_PER_HOUR
from raysent.storage import content_key

# Path -> encoder.
Load = Callable[[str], SentenceEncoder]
# What comes of a model on a task.
Result: TypeAlias = Record | SimilarityScore | RetrievalRecord
Rows = TypeVar("Rows", TaskData, SimilarityData, RetrievalData)
Made = TypeVar("Made", Record, SimilarityScore, RetrievalRecord)

_TIMED_SENTENCES = 256
_TIMED_REPEATS = 3
# Slow encoders are timed once.
_TIMED_S = 1.0


@dataclass(frozen=True)
class Unfit:
    """Why a model has no result on a task, in a line."""

    reason: str


@dataclass(frozen=True)
class Job:
    """The evaluation of one model on one task.

    Attributes:
        member: The model.
        data: The task's rows.
        protocol: A name in `PROTOCOLS`, `similarity` or `retrieval`.
        key: A hash of model, rows, protocol and settings.
        lexical_s: Seconds of the fits of a model without vectors; None for no limit.
        limited_key: The key of a record whose fits left something out to end in time.
    """

    member: Member
    data: AnyData = field(repr=False)
    protocol: str
    key: str
    lexical_s: float | None = None
    limited_key: str | None = None

    def run(self, *, load: Load = load_model) -> Result | Unfit:
        """Evaluate the model on the task, or return why it cannot be fitted to its rows."""
        try:
            return self._run(load)
        except DataError as error:
            return Unfit(str(error))

    def _run(self, load: Load) -> Result:
        encoder = self.member.encoder
        if encoder is None:
            encoder = load(self.member.path)
        if encoder.vectors_of is not None:
            raise ConfigError(
                f"{self.member.path}: has no vectors of its own; name {encoder.vectors_of}"
            )
        fitted: Result = kind_of(self.data).fit(self, encoder)
        return fitted


class _TaskKind(ABC, Generic[Rows, Made]):
    """How models are scored on the rows of one kind of task.

    Call order: `divided` once for the rows; `record_of` for each model, which names its record; `read`, and where there
    is none `fit` and `write`.
    """

    # Whether models without vectors are fitted to its rows, which takes time that they share.
    fits_words = False

    def lacks_test(self, rows: Rows) -> bool:
        """Return whether the task itself names no rows that test."""
        del rows
        return False

    def divided(self, rows: Rows, protocol: str, *, chooses: bool) -> Rows:
        """Return rows as models are scored on them.

        Args:
            rows: The rows.
            protocol: The protocol of tasks with a probe.
            chooses: Whether the scores choose among models.
        """
        del protocol, chooses
        return rows

    @abstractmethod
    def record_of(self, member: Member, rows: Rows, protocol: str) -> tuple[str, object]:
        """Return the protocol of a model's record, and what it depends on beside the model and the rows."""

    @abstractmethod
    def fit(self, job: Job, encoder: SentenceEncoder) -> Made:
        """Score a model on the rows of a job."""

    @abstractmethod
    def read(self, folder: Path, job: Job) -> Made | None:
        """Return what was kept of a job in a folder; None if there is nothing of the same key."""

    @abstractmethod
    def write(self, folder: Path, job: Job, made: Made) -> None:
        """Keep what came of a job in a folder."""

    def restored(self, made: Made, rows: Rows) -> Made:
        """Return what an earlier version kept, with what this one has beside it."""
        del rows
        return made


class _Probed(_TaskKind[TaskData, Record]):
    """A probe is fitted to the rows."""

    fits_words = True

    def lacks_test(self, rows: TaskData) -> bool:
        """Return whether rows are drawn for the test, or each of them does both."""
        return rows.split == "nested" or rows.is_drawn

    def divided(self, rows: TaskData, protocol: str, *, chooses: bool) -> TaskData:
        """Return rows with those that test drawn, where the protocol has them."""
        del chooses
        if protocol == DIVIDED:
            return divided(rows)
        return rows

    def record_of(self, member: Member, rows: TaskData, protocol: str) -> tuple[str, object]:
        """Return what a record depends on beside the model and the rows; what no row needs is left out."""
        settings: dict[str, object] = PROTOCOLS[protocol].settings()
        if _trains_on_validation(rows, protocol):
            settings["joins"] = True
        parts = part_folders(member.path)
        if parts:
            settings["parts"] = [model_key(str(part)) for part in parts]
        if len(rows.units):
            settings["units"] = rows.units.tolist()
        if _has_few_rows(rows, protocol):
            settings["usual_strength"] = USUAL_STRENGTH
        # Of names that other versions knew too: they read such text otherwise.
        texts = chain.from_iterable(rows.sentences)
        if member.path in LEXICAL and not all(is_in_form(text, OF_NEW) for text in texts):
            settings["unicode_form"] = OF_NEW
        return protocol, settings

    def fit(self, job: Job, encoder: SentenceEncoder) -> Record:
        """Fit a probe to a model's vectors, or a model without vectors itself."""
        assert isinstance(job.data, TaskData)
        return _fit_probe(job, job.data, encoder)

    def read(self, folder: Path, job: Job) -> Record | None:
        """Return a record of all fits, or else of those that ended in time."""
        record = read_record(folder, job.data.task, key=job.key)
        if record is None and job.limited_key is not None:
            record = read_record(folder, job.data.task, key=job.limited_key)
        return record

    def write(self, folder: Path, job: Job, made: Record) -> None:
        """Keep a record, which has its key."""
        del job
        write_record(folder, made)

    def restored(self, made: Record, rows: TaskData) -> Record:
        """Return a record with the type of the labels, which earlier versions did not record."""
        if made.label_kind == rows.label_kind:
            return made
        return replace(made, label_kind=rows.label_kind)


class _Rated(_TaskKind[SimilarityData, SimilarityScore]):
    """The similarity of a model's own vectors is compared with ratings."""

    def record_of(self, member: Member, rows: SimilarityData, protocol: str) -> tuple[str, object]:
        """Return the protocol `similarity` and its version."""
        del member, rows, protocol
        return SIMILARITY, SIMILARITY_VERSION

    def fit(self, job: Job, encoder: SentenceEncoder) -> SimilarityScore:
        """Compare; nothing is fitted."""
        assert isinstance(job.data, SimilarityData)
        return score_sets(encoder, job.data.sets, model=job.member.name, task=job.data.task)

    def read(self, folder: Path, job: Job) -> SimilarityScore | None:
        """Return what was kept."""
        return read_score(folder, job.data.task, SimilarityScore, key=job.key)

    def write(self, folder: Path, job: Job, made: SimilarityScore) -> None:
        """Keep the scores."""
        write_score(folder, made, key=job.key)


class _Ranked(_TaskKind[RetrievalData, RetrievalRecord]):
    """A model ranks passages for queries."""

    def divided(self, rows: RetrievalData, protocol: str, *, chooses: bool) -> RetrievalData:
        """Return rows of which some queries choose, where the scores do."""
        del protocol
        if chooses:
            return with_dev(rows)
        return rows

    def record_of(self, member: Member, rows: RetrievalData, protocol: str) -> tuple[str, object]:
        """Return the protocol `retrieval` and its version; records of earlier versions found blank passages."""
        del member, protocol
        if any(map(is_blank, rows.passages)):
            return RETRIEVAL, {"version": RETRIEVAL_VERSION, "finds_blank": False}
        return RETRIEVAL, RETRIEVAL_VERSION

    def fit(self, job: Job, encoder: SentenceEncoder) -> RetrievalRecord:
        """Rank; nothing is fitted."""
        data = job.data
        assert isinstance(data, RetrievalData)
        ranking = rank(encoder, data, np.concatenate([data.dev, data.test]))
        costs = None
        if job.member.encoder is None:
            costs = costs_of(Path(job.member.path))
        encode_ms = None
        if not encoder.cannot_encode:
            encode_ms = _encode_ms(encoder.encode, data.passages)
        return record_of(ranking, data, model=job.member.name, costs=costs, encode_ms=encode_ms)

    def read(self, folder: Path, job: Job) -> RetrievalRecord | None:
        """Return what was kept."""
        return read_retrieval(folder, job.data.task, key=job.key)

    def write(self, folder: Path, job: Job, made: RetrievalRecord) -> None:
        """Keep the ranking and its scores."""
        write_retrieval(folder, made, key=job.key)


_KINDS: Mapping[type, _TaskKind[Any, Any]] = {
    TaskData: _Probed(),
    SimilarityData: _Rated(),
    RetrievalData: _Ranked(),
}


def kind_of(rows: AnyData) -> _TaskKind[Any, Any]:
    """Return what decides how models are scored on rows."""
    return _KINDS[type(rows)]


class TaskRows:
    """The rows of tasks: each is loaded once, and divided once for each way to score it."""

    def __init__(self) -> None:
        # By the task's identity, as what equals a task may have other rows by now; the task is kept with it.
        self._loaded: dict[tuple[int, Path | None], tuple[Task, AnyData]] = {}
        self._divided: dict[tuple[int, Path | None, str, bool], AnyData] = {}

    def loaded(self, task: Task, data_dir: Path | None) -> AnyData:
        """Return the rows of a task.

        Raises:
            DataError: If a file is missing or not as published.
        """
        key = (id(task), data_dir)
        if key not in self._loaded:
            self._loaded[key] = (task, task.load(data_dir))
        return self._loaded[key][1]

    def divided(
        self, task: Task, data_dir: Path | None, protocol: str, *, chooses: bool
    ) -> AnyData:
        """Return the rows of a task as models are scored on them; arguments as of a kind's `divided`."""
        key = (id(task), data_dir, protocol, chooses)
        if key not in self._divided:
            rows = self.loaded(task, data_dir)
            self._divided[key] = kind_of(rows).divided(rows, protocol, chooses=chooses)
        return self._divided[key]


def job_of(member: Member, rows: AnyData, protocol: str) -> Job:
    """Return the evaluation of a model on rows."""
    record_protocol, settings = kind_of(rows).record_of(member, rows, protocol)
    key = content_key(member.key, rows.row_hash, record_protocol, settings)
    return Job(member, rows, record_protocol, key)


def _has_few_rows(data: TaskData, protocol: str) -> bool:
    """Return whether so few rows choose a probe's strength that `Targets.best` takes a usual one."""
    if data.is_scored or protocol not in ("fast", DIVIDED):
        return False
    if data.split == "nested":
        num_choosing = len(data)
    elif data.split == "train-validation-test" and not data.has_drawn_validation:
        num_choosing = len(data.validation)
    else:
        num_choosing = len(data.train) + len(data.validation)
    return num_choosing < MIN_SCORED_ROWS


def _trains_on_validation(data: TaskData, protocol: str) -> bool:
    """Return whether models that did not learn a task's labels are fitted to its train and validation rows."""
    return data.has_drawn_validation and protocol in ("fast", DIVIDED)


def _encode_ms(encode: Callable[[list[str]], object], sentences: Sequence[str]) -> float:
    """Return the milliseconds to encode 1,000 sentences: the median of repeats on a sample, after a first use."""
    sample = list(sentences[:_TIMED_SENTENCES])
    times: list[float] = []
    while len(times) < _TIMED_REPEATS and sum(times) < _TIMED_S:
        started = time.perf_counter()
        encode(sample)
        times.append(time.perf_counter() - started)
    return 1e6 * float(np.median(times)) / len(sample)


def _lexical_costs(arrays: dict[str, np.ndarray], probed: ProbeResult, fit_s: float) -> Costs:
    """Return the costs of a model without vectors, whose size is that of its words and of its probe."""
    weights = (probed.probe.weights, probed.probe.intercepts)
    return Costs(
        num_parameters=sum(array.size for array in (*weights, arrays["idf"])),
        num_bytes=sum(array.nbytes for array in (*weights, *arrays.values())),
        training_hours=fit_s / SECONDS_PER_HOUR,
    )


def has_learned(encoder: SentenceEncoder, data: TaskData) -> bool:
    """Return whether a model was trained on labels of a task's training rows."""
    # Other objects that encode have learned no task.
    tasks: Mapping[str, str] = getattr(encoder, "learned_tasks", {})
    return data.task in tasks or data.is_any_of(tasks.values())


@dataclass(frozen=True)
class _Fit:
    """A probe of a model, before its record.

    Attributes:
        probed: Its predictions and scores.
        encoded_s: When the rows were encoded, by the clock of `time.perf_counter`.
        arrays: What a model without vectors needs to predict.
        uses_layer: Whether the model's own layer predicts.
        is_out_of_fold: Whether the rows that choose were predicted by models that had not learned them.
    """

    probed: ProbeResult
    encoded_s: float
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    uses_layer: bool = False
    is_out_of_fold: bool = True


def _fit_words(job: Job, data: TaskData, fitted_rows: TaskData, encoder: LexicalModel) -> _Fit:
    """Fit a model without vectors to a task's rows."""
    started_s = time.perf_counter()
    check_rows(data, protocol=job.protocol, model=job.member.name)
    probed, arrays = fit_lexical(encoder, fitted_rows, seconds=job.lexical_s)
    measures = {**balance_measures(data, probed), **probed.measures}
    return _Fit(replace(probed, measures=measures), started_s, arrays)


def _fit_vectors(job: Job, data: TaskData, fitted_rows: TaskData, encoder: SentenceEncoder) -> _Fit:
    """Fit a probe to the vectors of a task's rows."""
    encode = stored(encoder, job.member, is_kept=is_pretrained(job.member.path))
    is_fast = job.protocol in ("fast", DIVIDED)
    if is_fast and has_learned(encoder, data) and has_parts(data):
        return _fit_learned(job, data, encoder, encode)
    features = task_features(encode, data)
    encoded_s = time.perf_counter()
    probed = fit_probe(features, fitted_rows, protocol=job.protocol, source=job.member.path)
    layered = None
    if is_fast:
        layered = own_result(encoder, data, probed)
    return _Fit(layered or probed, encoded_s, uses_layer=layered is not None)


def _fit_learned(job: Job, data: TaskData, encoder: SentenceEncoder, encode: Encode) -> _Fit:
    """Fit a probe of a model that learned rows among which there are no validation rows of the task's own."""
    parts = part_folders(job.member.path)
    if parts:
        fitted = fit_parts(encoder, encode, data, [load_model(str(part)) for part in parts])
        return _Fit(fitted.result, time.perf_counter(), uses_layer=fitted.uses_layer)
    # A model that left out a third of the rows is judged by them; of another one no row is new that may choose.
    rows = without_learned(job.member.path, data)
    is_out_of_fold = rows is not None
    if rows is None:
        rows = data
    features = task_features(encode, rows)
    probed = fit_probe(features, rows, protocol="fast", source=job.member.path)
    layered = None
    if is_out_of_fold and has_own_layer(encoder, data):
        layered = layer_result(encoder, rows, probed)
    return _Fit(
        layered or probed,
        time.perf_counter(),
        uses_layer=layered is not None,
        is_out_of_fold=is_out_of_fold,
    )


def _fit_probe(job: Job, data: TaskData, encoder: SentenceEncoder) -> Record:
    """Return the record of a model on a task with a probe."""
    started_s = time.perf_counter()
    learned = has_learned(encoder, data)
    if learned:
        # What learned rows of the table may not be tested on them.
        data = divided(data)
    trains_on_both = _trains_on_validation(data, job.protocol) and not learned
    fitted_rows = data
    if trains_on_both:
        fitted_rows = data.cross_validated()
    if isinstance(encoder, LexicalModel):
        fit = _fit_words(job, data, fitted_rows, encoder)
    else:
        fit = _fit_vectors(job, data, fitted_rows, encoder)
    probed = fit.probed
    if trains_on_both:
        probed = scored_by_validation(probed, data)
    seconds = {
        "encode_s": fit.encoded_s - started_s,
        "probe_s": time.perf_counter() - fit.encoded_s,
    }
    encode: Callable[[list[str]], object] = encoder.encode
    costs = Costs()
    if isinstance(encoder, LexicalModel):
        encode = encoder.restored(fit.arrays).transform
        costs = _lexical_costs(fit.arrays, probed, seconds["probe_s"])
    elif job.member.encoder is None:
        costs = costs_of(Path(job.member.path))
    seconds["encode_ms_per_1000"] = _encode_ms(encode, data.sentences[0])
    about: dict[str, Any] = {"settings": PROTOCOLS[job.protocol].settings()}
    if probed.limited:
        about["limited"] = probed.limited
    about |= {
        "interval": list(score_interval(probed, data)),
        "num_unfinished_fits": probed.num_unfinished,
        "versions": library_versions(),
        "seconds": {name: round(duration, 3) for name, duration in seconds.items()},
        "costs": asdict(costs),
        "scale": data.scale,
        "learned": learned,
        "own_layer": fit.uses_layer,
        "out_of_fold": fit.is_out_of_fold,
    }
    return _as_record(job, data, replace(fit, probed=probed), about)


def _as_record(job: Job, data: TaskData, fit: _Fit, about: Mapping[str, Any]) -> Record:
    """Return the record of a fit; its key says whether something was left out to end in time."""
    probed = fit.probed
    key = job.key
    if probed.limited and job.limited_key:
        key = job.limited_key
    return Record(
        model=job.member.name,
        model_key=job.member.key,
        task=data.task,
        kind=data.kind,
        protocol=job.protocol,
        label_names=data.label_names,
        label_kind=data.label_kind,
        row_hash=data.row_hash,
        key=key,
        labels=data.labels,
        scores=data.scores,
        units=data.units,
        metric=data.metric,
        validation=probed.validation,
        test=probed.test,
        measures=dict(probed.measures),
        folds=probed.folds,
        probe=probed.probe,
        about=about,
        arrays=fit.arrays,
    )
