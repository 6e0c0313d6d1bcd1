"""Models and tasks -> scores, and a record of each model on each task.

A job is one model on one task: encode its sentences, then fit a probe, or compare similarities with scores. Jobs are
independent, so they may run one after another or on a cluster. A record is found again by a hash of the model's
content, the rows and the settings, so that nothing is evaluated twice (see `records`). Records of models that their
name alone determines, such as TF-IDF, are also kept in the user's cache folder, for all runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from raysent.data.languages import language_of_texts
from raysent.data.same_text import is_blank
from raysent.data.unicode_form import OF_NEW, is_in_form
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.evaluation.baselines import LEXICAL, baselines_of, is_pretrained
from raysent.evaluation.bootstrap import score_interval
from raysent.evaluation.division import divided
from raysent.evaluation.members import Member, Model, expand, model_key
from raysent.evaluation.own_layer import has_own_layer, layer_result, own_result
from raysent.evaluation.parts import fit_parts, has_parts, part_folders, without_learned
from raysent.evaluation.probes.features import Encode, task_features
from raysent.evaluation.probes.lexical import fit_lexical
from raysent.evaluation.probes.results import ProbeResult, balance_measures
from raysent.evaluation.protocols import PROTOCOLS, check_rows, fit_probe, protocol_name
from raysent.evaluation.protocols.fast import DIVIDED, scored_by_validation
from raysent.evaluation.records import (
    SIMILARITY,
    AnyScore,
    Costs,
    Record,
    SimilarityScore,
    costs_of,
    has_parted_units,
    library_versions,
    read_record,
    read_score,
    record_folder,
    write_record,
    write_score,
)
from raysent.evaluation.refit import can_refit, refit
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
from raysent.evaluation.task import (
    NO_ROWS,
    PROBED,
    AnyData,
    RetrievalData,
    SimilarityData,
    Task,
    TaskData,
)
from raysent.evaluation.task_files.queries import with_dev
from raysent.evaluation.tasks import resolve_tasks
from raysent.evaluation.titles import model_title
from raysent.evaluation.vector_store import stored
from raysent.models import load as load_model
from raysent.models.schemes import split_path
from raysent.models.schemes.tfidf import LexicalModel
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.parallel import Progress
from raysent.progress import messages
from raysent.screen import detail
from raysent.storage import address_of, cache_folder, content_key

# Path -> encoder.
Load = Callable[[str], SentenceEncoder]
# What is evaluated, the number of evaluations done, and of all.
Result = Record | SimilarityScore | RetrievalRecord

_TIMED_SENTENCES = 256
_TIMED_REPEATS = 3
# Slow encoders are timed once.
_TIMED_S = 1.0
_SECONDS_PER_HOUR = 3600.0


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
        encoder = load(self.member.path) if self.member.encoder is None else self.member.encoder
        if encoder.vectors_of is not None:
            raise ConfigError(
                f"{self.member.path}: has no vectors of its own; name {encoder.vectors_of}"
            )
        if isinstance(self.data, SimilarityData):
            return score_sets(encoder, self.data.sets, model=self.member.name, task=self.data.task)
        if isinstance(self.data, RetrievalData):
            return _run_retrieval(self.member, self.data, encoder)
        return _run_probe(self, self.data, encoder)


# Jobs of one kind -> the place of each among them and its result, in any order.
MapJobs = Callable[[Sequence[Any]], Iterable[tuple[int, Any]]]


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models on tasks and keeps records in a folder; what is there already is read.

    Attributes:
        output: Folder of the records.
        data_dir: Folder in SentEval's layout; None for embedded tasks alone.
        protocol: A name in `PROTOCOLS`, for tasks with a probe.
        load: Path -> encoder.
        progress: Called with the progress of the evaluation.
        map_jobs: Runs jobs, e.g. on a cluster; by default one after another.
        other_outputs: More folders of records; a record that is found there is copied to `output`.
        divides: Whether tasks without given splits are divided into train and test, by the protocol `fast/divided`
            instead of `fast`, and queries of test alone into dev and test: for callers that choose among models, see
            `evaluation.division`.
        lexical_s: Seconds of all fits of models without vectors, which plan to end in them; None for no limit. A line
            and the record say what was left out. A record that left nothing out is the same as without a limit.
        goes_on: Whether a model that cannot be fitted to a task is left out with a line, unless no model can; otherwise
            it is an error.
    """

    output: Path
    data_dir: Path | None = None
    protocol: str = "fast"
    load: Load = load_model
    progress: Progress | None = None
    map_jobs: MapJobs | None = None
    other_outputs: tuple[Path, ...] = ()
    divides: bool = False
    lexical_s: float | None = None
    goes_on: bool = False

    def evaluate(
        self, models: Sequence[Model], tasks: Iterable[str | Task] | None = None
    ) -> list[AnyScore]:
        """Score models on tasks.

        Args:
            models: Folders of models, ``hash:DIM``, encoders, or sweeps' folders, which stand for their trials' models.
            tasks: Tasks or their names; by default those whose files the data folder holds, or the embedded ones.

        Returns:
            One score per model and task, in the order given.

        Raises:
            ConfigError: If a task or the protocol is unknown.
            DataError: If a task's files are missing or wrong, or a model gives NaN.
            ArtifactError: If a model cannot be loaded or a record cannot be written.
        """
        chosen = resolve_tasks(tasks, self.data_dir)
        results = self._results(expand(models), chosen)
        return [
            result if isinstance(result, SimilarityScore) else result.score
            for of_member in results.values()
            for result in of_member
            if not isinstance(result, Unfit)
        ]

    def records(
        self, members: Sequence[Member], tasks: Iterable[str | Task] | None = None
    ) -> dict[Member, list[Record]]:
        """Return the records of members on tasks with a probe.

        Args:
            members: The models.
            tasks: As for `evaluate`; by default tasks scored by accuracy.

        Raises:
            RaysentError: As for `evaluate`; also if a task has no probe.
        """
        chosen = self.probed_tasks(tasks)
        results = self.results(members, chosen)
        return {
            member: [result for result in of_member if isinstance(result, Record)]
            for member, of_member in results.items()
        }

    def baselines(
        self, members: Sequence[Member], tasks: Iterable[str | Task] | None = None
    ) -> list[Member]:
        """Return the baselines of members on tasks with a probe; see `baselines_of`."""
        chosen = self.probed_tasks(tasks)
        return baselines_of(members, protocol=self.protocol, tasks=chosen)

    def probed_tasks(self, tasks: Iterable[str | Task] | None = None) -> list[Task]:
        """Return the tasks with a probe that names stand for; by default those whose files are there."""
        return resolve_tasks(tasks, self.data_dir, scorings=PROBED, default={"accuracy"})

    def languages(self, tasks: Iterable[str | Task] | None = None) -> dict[str, str]:
        """Return the code of the language of each task's texts, by the task's name."""
        chosen = self.probed_tasks(tasks)
        data = [task.load(self.data_dir) for task in chosen]
        return {
            rows.task: language_of_texts(rows.sentences[0])
            for rows in data
            if isinstance(rows, TaskData)
        }

    def refitted(self, member: Member, record: Record, tasks: Sequence[Task]) -> Record:
        """Return a record whose probe is fitted on every labelled row, where that may be; see `refit`.

        Args:
            member: The model.
            record: Its record on one of the tasks.
            tasks: The tasks.
        """
        for task in tasks:
            if task.name != record.task:
                continue
            data = task.load(self.data_dir)
            data = divided(data) if isinstance(data, TaskData) else data
            if not isinstance(data, TaskData) or not can_refit(record, data):
                return record
            encoder = self.load(member.path) if member.encoder is None else member.encoder
            if isinstance(encoder, LexicalModel):
                return refit(record, data, encoder)
            is_kept = is_pretrained(member.path)
            return refit(record, data, stored(encoder, member, is_kept=is_kept))
        return record

    def results(
        self, members: Sequence[Member], tasks: Sequence[Task]
    ) -> dict[Member, list[Result]]:
        """Return the result of every member on every task, made or read, by member.

        A member that is left out on a task, see `goes_on`, has none of any.
        """
        complete: dict[Member, list[Result]] = {}
        for member, of_member in self._results(members, tasks).items():
            fitted = [result for result in of_member if not isinstance(result, Unfit)]
            if len(fitted) == len(of_member):
                complete[member] = fitted
        if members and not complete:
            raise DataError(
                "models: none of them can be fitted to all tasks; name other models or tasks"
            )
        return complete

    def _results(
        self, members: Sequence[Member], tasks: Sequence[Task]
    ) -> dict[Member, list[Result | Unfit]]:
        data = [task.load(self.data_dir) for task in tasks]
        protocol = protocol_name(self.protocol)
        lacks_test_rows = [
            isinstance(rows, TaskData) and (rows.split == "nested" or rows.is_drawn)
            for rows in data
        ]
        if protocol == "fast" and self.divides and any(lacks_test_rows):
            protocol = DIVIDED
        if protocol == DIVIDED:
            data = [divided(rows) if isinstance(rows, TaskData) else rows for rows in data]
        if self.divides:
            data = [with_dev(rows) if isinstance(rows, RetrievalData) else rows for rows in data]
        data = [self._as_scored_before(rows, protocol) for rows in data]
        jobs = self._in_time([_job(member, rows, protocol) for member in members for rows in data])
        results: list[Result | Unfit | None] = [self._read(job) for job in jobs]
        missing = [place for place, result in enumerate(results) if result is None]
        num_read = len(jobs) - len(missing)
        if missing:
            self._report(jobs[missing[0]], num_read, len(jobs))
        todo = [jobs[place] for place in missing]
        made = run_in_turn(todo, load=self.load) if self.map_jobs is None else self.map_jobs(todo)
        for count, (place, result) in enumerate(made, start=1):
            job = todo[place]
            if isinstance(result, Unfit):
                self._leave_out(job, result, is_last=len(members) == 1)
            else:
                self._write(job, result)
            results[missing[place]] = result
            self._report(job, num_read + count, len(jobs))
        if self.progress is not None:
            self.progress("done", len(jobs), len(jobs))
        ordered = iter([result for result in results if result is not None])
        found = {member: [next(ordered) for _ in tasks] for member in members}
        for of_task in zip(*found.values(), strict=True):
            unfit = [result for result in of_task if isinstance(result, Unfit)]
            if len(unfit) == len(found):
                raise DataError(unfit[0].reason)
        return found

    def _leave_out(self, job: Job, unfit: Unfit, *, is_last: bool) -> None:
        """Say that a model is left out on a task.

        Raises:
            DataError: If it may not be, or is the only one.
        """
        if not self.goes_on or is_last:
            raise DataError(unfit.reason)
        messages.print(
            f"warning: {job.member.name} is left out on {job.data.task}, to which it cannot be fitted: {unfit.reason}",
            soft_wrap=True,
        )

    def _as_scored_before(self, data: AnyData, protocol: str) -> AnyData:
        """Return a task's rows as an earlier version divided them where its records of them are in the folder."""
        if not isinstance(data, TaskData) or not len(data.units):
            return data
        folders = [record_folder(folder, protocol) for folder in self.output.glob("*/")]
        if not any(has_parted_units(folder, data) for folder in folders):
            return data
        messages.print(
            f"{data.task}: an earlier version scored it in {address_of(self.output)}, and its folds are kept, which "
            "may part copies; another output keeps copies together",
            soft_wrap=True,
        )
        return replace(data, units=NO_ROWS)

    def _in_time(self, jobs: list[Job]) -> list[Job]:
        """Return jobs of which those of models without vectors share the time."""
        shared = [job.member.path in LEXICAL and isinstance(job.data, TaskData) for job in jobs]
        if self.lexical_s is None or not any(shared):
            return jobs
        each_s, all_s = self.lexical_s / sum(shared), self.lexical_s
        return [
            replace(job, lexical_s=each_s, limited_key=content_key(job.key, all_s))
            if is_shared
            else job
            for job, is_shared in zip(jobs, shared, strict=True)
        ]

    def _read(self, job: Job) -> Result | None:
        own = record_folder(self.output / job.member.folder, job.protocol)
        others = [
            record_folder(output / job.member.folder, job.protocol) for output in self.other_outputs
        ]
        for folder in (own, *others, *_shared_folder(job)):
            result = None
            with contextlib.suppress(ArtifactError):  # a damaged record is made again
                result = _kept_result(folder, job)
            if result is not None:
                result, is_changed = _of_kind(result, job.data)
                if folder != own or is_changed:
                    _write(own, job, result)
                return result
        return None

    def _write(self, job: Job, result: Result) -> None:
        _write(record_folder(self.output / job.member.folder, job.protocol), job, result)
        if isinstance(result, Record) and result.key == job.limited_key:
            detail(f"{result.model} on {result.task}: {result.about['limited']}")
            return
        for folder in _shared_folder(job):
            with contextlib.suppress(
                ArtifactError, OSError
            ):  # a cache; the run's own record is written
                _write(folder, job, result)

    def _report(self, job: Job, done: int, total: int) -> None:
        if self.progress is not None:
            title = model_title(job.member.path, job.member.name)
            self.progress(f"{title} on {job.data.task}", done, total)


def _of_kind(result: Result, data: AnyData) -> tuple[Result, bool]:
    """Return a record with the type of a task's labels, which earlier versions did not record, and if it is new."""
    if not isinstance(result, Record) or not isinstance(data, TaskData):
        return result, False
    if result.label_kind == data.label_kind:
        return result, False
    return replace(result, label_kind=data.label_kind), True


def _job(member: Member, data: AnyData, protocol: str) -> Job:
    settings: object
    if isinstance(data, TaskData):
        settings = _settings(member, data, protocol)
    elif isinstance(data, RetrievalData):
        protocol, settings = RETRIEVAL, RETRIEVAL_VERSION
        if any(map(is_blank, data.passages)):  # records of earlier versions found them
            settings = {"version": RETRIEVAL_VERSION, "finds_blank": False}
    else:
        protocol, settings = SIMILARITY, SIMILARITY_VERSION
    return Job(member, data, protocol, content_key(member.key, data.row_hash, protocol, settings))


def _settings(member: Member, data: TaskData, protocol: str) -> dict[str, object]:
    """Return what a record depends on beside the model and the rows; what no row needs is left out."""
    settings = PROTOCOLS[protocol].settings()
    if _trains_on_validation(data, protocol):
        settings["joins"] = True
    if parts := part_folders(member.path):
        settings["parts"] = [model_key(str(part)) for part in parts]
    if len(data.units):
        settings["units"] = data.units.tolist()
    if _has_few_rows(data, protocol):
        settings["usual_strength"] = USUAL_STRENGTH
    # Of names that other versions knew too: they read such text otherwise.
    texts = chain.from_iterable(data.sentences)
    if member.path in LEXICAL and not all(is_in_form(text, OF_NEW) for text in texts):
        settings["unicode_form"] = OF_NEW
    return settings


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


def _shared_folder(job: Job) -> list[Path]:
    """Return the folder of a record that all runs of this user share; none for a model that has files."""
    if job.member.encoder is not None or split_path(job.member.path)[1] is not None:
        return []
    return [cache_folder() / "evaluation" / job.key]


def _kept_result(folder: Path, job: Job) -> Result | None:
    """Return what was kept of a job in a folder; None if there is nothing of the same key."""
    if isinstance(job.data, RetrievalData):
        return read_retrieval(folder, job.data.task, key=job.key)
    if not isinstance(job.data, TaskData):
        return read_score(folder, job.data.task, SimilarityScore, key=job.key)
    record = read_record(folder, job.data.task, key=job.key)
    if record is None and job.limited_key is not None:
        record = read_record(folder, job.data.task, key=job.limited_key)
    return record


def _write(folder: Path, job: Job, result: Result) -> None:
    if isinstance(result, Record):
        write_record(folder, result)
    elif isinstance(result, RetrievalRecord):
        write_retrieval(folder, result, key=job.key)
    else:
        write_score(folder, result, key=job.key)


def run_in_turn(jobs: Sequence[Any], *, load: Load = load_model) -> Iterator[tuple[int, Any]]:
    """Run jobs one after another, each by its `run(load=…)`; a model is loaded once for consecutive jobs."""
    last: tuple[str, SentenceEncoder] | None = None

    def load_once(path: str) -> SentenceEncoder:
        nonlocal last
        if last is None or last[0] != path:
            last = (path, load(path))
        return last[1]

    yield from enumerate(job.run(load=load_once) for job in jobs)


def _encode_ms(encode: Callable[[list[str]], object], sentences: Sequence[str]) -> float:
    """Return the milliseconds to encode 1,000 sentences: the median of repeats on a sample, after a first use."""
    sample = list(sentences[:_TIMED_SENTENCES])
    times: list[float] = []
    while len(times) < _TIMED_REPEATS and sum(times) < _TIMED_S:
        started = time.perf_counter()
        encode(sample)
        times.append(time.perf_counter() - started)
    return 1e6 * float(np.median(times)) / len(sample)


def _lexical_costs(arrays: dict[str, np.ndarray], result: ProbeResult, fit_s: float) -> Costs:
    weights = (result.probe.weights, result.probe.intercepts)
    return Costs(
        num_parameters=sum(array.size for array in (*weights, arrays["idf"])),
        num_bytes=sum(array.nbytes for array in (*weights, *arrays.values())),
        training_hours=fit_s / _SECONDS_PER_HOUR,
    )


def _run_retrieval(
    member: Member, data: RetrievalData, encoder: SentenceEncoder
) -> RetrievalRecord:
    ranking = rank(encoder, data, np.concatenate([data.dev, data.test]))
    return record_of(
        ranking,
        data,
        model=member.name,
        costs=costs_of(Path(member.path)) if member.encoder is None else None,
        encode_ms=None if encoder.cannot_encode else _encode_ms(encoder.encode, data.passages),
    )


def has_learned(encoder: SentenceEncoder, data: TaskData) -> bool:
    """Return whether a model was trained on labels of a task's training rows."""
    tasks: Mapping[str, str] = getattr(
        encoder, "learned_tasks", {}
    )  # other objects that encode have none
    return data.task in tasks or data.is_any_of(tasks.values())


def _learned_result(
    job: Job, data: TaskData, encoder: SentenceEncoder, encode: Encode
) -> tuple[ProbeResult, bool, bool]:
    """Return the result of a model that learned rows among which there are no validation rows of the task's own.

    Returns:
        The result; whether it is of the model's own layer; and whether the rows that choose were predicted by models
        that had not learned them.
    """
    if parts := part_folders(job.member.path):
        found = fit_parts(encoder, encode, data, [load_model(str(part)) for part in parts])
        return found.result, found.uses_layer, True
    judged = without_learned(job.member.path, data)
    some = data if judged is None else judged
    result = fit_probe(task_features(encode, some), some, protocol="fast", source=job.member.path)
    has_layer = judged is not None and has_own_layer(encoder, data)
    own = layer_result(encoder, some, result) if has_layer else None
    return own or result, own is not None, judged is not None


def _run_probe(job: Job, data: TaskData, encoder: SentenceEncoder) -> Record:
    started, arrays = time.perf_counter(), dict[str, np.ndarray]()
    encoded, uses_layer, is_out_of_fold = started, False, True
    learned = has_learned(encoder, data)
    # What learned rows of the table may not be tested on them.
    data = divided(data) if learned else data
    trains_on_both = _trains_on_validation(data, job.protocol) and not learned
    fitted = data.cross_validated() if trains_on_both else data
    if isinstance(encoder, LexicalModel):
        check_rows(data, protocol=job.protocol, model=job.member.name)
        result, arrays = fit_lexical(encoder, fitted, seconds=job.lexical_s)
        result = replace(result, measures={**balance_measures(data, result), **result.measures})
    else:
        encode_stored = stored(encoder, job.member, is_kept=is_pretrained(job.member.path))
        is_fast = job.protocol in ("fast", DIVIDED)
        if learned and is_fast and has_parts(data):
            result, uses_layer, is_out_of_fold = _learned_result(job, data, encoder, encode_stored)
            encoded = time.perf_counter()
        else:
            features = task_features(encode_stored, data)
            encoded = time.perf_counter()
            result = fit_probe(features, fitted, protocol=job.protocol, source=job.member.path)
            own = own_result(encoder, data, result) if is_fast else None
            uses_layer, result = own is not None, own or result
    result = scored_by_validation(result, data) if trains_on_both else result
    seconds = {"encode_s": encoded - started, "probe_s": time.perf_counter() - encoded}
    if isinstance(encoder, LexicalModel):
        encode, costs = (
            encoder.restored(arrays).transform,
            _lexical_costs(arrays, result, seconds["probe_s"]),
        )
    else:
        encode, costs = (
            encoder.encode,
            costs_of(Path(job.member.path)) if job.member.encoder is None else Costs(),
        )
    seconds["encode_ms_per_1000"] = _encode_ms(encode, data.sentences[0])
    about = {
        "settings": PROTOCOLS[job.protocol].settings(),
        **({"limited": result.limited} if result.limited else {}),
        "interval": list(score_interval(result, data)),
        "num_unfinished_fits": result.num_unfinished,
        "versions": library_versions(),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "costs": asdict(costs),
        "scale": data.scale,
    }
    about |= {"learned": learned, "own_layer": uses_layer, "out_of_fold": is_out_of_fold}
    return Record(
        model=job.member.name,
        model_key=job.member.key,
        task=data.task,
        kind=data.kind,
        protocol=job.protocol,
        label_names=data.label_names,
        label_kind=data.label_kind,
        row_hash=data.row_hash,
        key=job.limited_key or job.key if result.limited else job.key,
        labels=data.labels,
        scores=data.scores,
        units=data.units,
        metric=data.metric,
        validation=result.validation,
        test=result.test,
        measures=dict(result.measures),
        folds=result.folds,
        probe=result.probe,
        about=about,
        arrays=arrays,
    )
