"""Models and tasks -> scores, and a record of each model on each task.

A job is one model on one task: encode its sentences, then fit a probe, or compare similarities with scores. Jobs are
independent, so they may run one after another or on a cluster. A record is found again by a hash of the model's
content, the rows and the settings, so that nothing is evaluated twice (see `records`). Records of models that their
name alone determines, such as TF-IDF, are also kept in the user's cache folder, for all runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raysent.data.languages import language_of_texts
from raysent.errors import ArtifactError, DataError
from raysent.evaluation.baselines import LEXICAL, baselines_of, is_pretrained
from raysent.evaluation.members import Member, Model, expand
from raysent.evaluation.protocols import DIVIDED, protocol_name
from raysent.evaluation.records import AnyScore, Record, has_parted_units, record_folder
from raysent.evaluation.refit import can_refit, refit
from raysent.evaluation.task import NO_ROWS, PROBED, AnyData, Task, TaskData
from raysent.evaluation.task_kinds import Job, Load, Result, TaskRows, Unfit, job_of, kind_of
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

# Jobs of one kind -> the index of each among them and its result, in any order.
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
        rows: The rows of tasks that are there already, which the evaluators of one sweep share; None where files may
            change between two calls.
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
    rows: TaskRows | None = field(default=None, repr=False, compare=False)

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
        results = self._results(expand(models), resolve_tasks(tasks, self.data_dir))
        return [
            result.score
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
        records = {}
        for member, of_member in self.results(members, self.probed_tasks(tasks)).items():
            records[member] = [record for record in of_member if isinstance(record, Record)]
        return records

    def baselines(
        self, members: Sequence[Member], tasks: Iterable[str | Task] | None = None
    ) -> list[Member]:
        """Return the baselines of members on tasks with a probe; see `baselines_of`."""
        return baselines_of(members, protocol=self.protocol, tasks=self.probed_tasks(tasks))

    def probed_tasks(self, tasks: Iterable[str | Task] | None = None) -> list[Task]:
        """Return the tasks with a probe that names stand for; by default those whose files are there."""
        return resolve_tasks(tasks, self.data_dir, scorings=PROBED, default={"accuracy"})

    def languages(self, tasks: Iterable[str | Task] | None = None) -> dict[str, str]:
        """Return the code of the language of each task's texts, by the task's name."""
        all_rows = self.rows or TaskRows()
        languages = {}
        for task in self.probed_tasks(tasks):
            rows = all_rows.loaded(task, self.data_dir)
            if isinstance(rows, TaskData):
                languages[rows.task] = language_of_texts(rows.sentences[0])
        return languages

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
            all_rows = self.rows or TaskRows()
            data = all_rows.divided(task, self.data_dir, DIVIDED, chooses=False)
            if not isinstance(data, TaskData) or not can_refit(record, data):
                return record
            encoder = member.encoder
            if encoder is None:
                encoder = self.load(member.path)
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
        all_rows = self.rows or TaskRows()
        data = [all_rows.loaded(task, self.data_dir) for task in tasks]
        protocol = protocol_name(self.protocol)
        lacks_test = any(kind_of(rows).lacks_test(rows) for rows in data)
        if protocol == "fast" and self.divides and lacks_test:
            protocol = DIVIDED
        divided_rows = []
        for task in tasks:
            rows = all_rows.divided(task, self.data_dir, protocol, chooses=self.divides)
            divided_rows.append(self._as_scored_before(rows, protocol))
        jobs = [job_of(member, rows, protocol) for member in members for rows in divided_rows]
        results = self._run(self._in_time(jobs), is_last=len(members) == 1)
        ordered = iter(results)
        by_member = {member: [next(ordered) for _ in tasks] for member in members}
        for of_task in zip(*by_member.values(), strict=True):
            unfit = [result for result in of_task if isinstance(result, Unfit)]
            if len(unfit) == len(by_member):
                raise DataError(unfit[0].reason)
        return by_member

    def _run(self, jobs: Sequence[Job], *, is_last: bool) -> list[Result | Unfit]:
        """Return what comes of each job: its record if there is one, else what is made and kept now."""
        results: dict[int, Result | Unfit] = {}
        missing = []
        for job_index, job in enumerate(jobs):
            record = self._read(job)
            if record is None:
                missing.append(job_index)
            else:
                results[job_index] = record
        if missing:
            self._report(jobs[missing[0]], len(results), len(jobs))
        missing_jobs = [jobs[job_index] for job_index in missing]
        finished: Iterable[tuple[int, Any]]
        if self.map_jobs is None:
            finished = run_in_turn(missing_jobs, load=self.load)
        else:
            finished = self.map_jobs(missing_jobs)
        for missing_index, outcome in finished:
            job = missing_jobs[missing_index]
            if isinstance(outcome, Unfit):
                self._leave_out(job, outcome, is_last=is_last)
            else:
                self._write(job, outcome)
            results[missing[missing_index]] = outcome
            self._report(job, len(results), len(jobs))
        if self.progress is not None:
            self.progress("done", len(jobs), len(jobs))
        return [results[job_index] for job_index in range(len(jobs))]

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
        num_sharing = sum(_fits_words(job) for job in jobs)
        if self.lexical_s is None or not num_sharing:
            return jobs
        each_s = self.lexical_s / num_sharing
        limited = []
        for job in jobs:
            if _fits_words(job):
                key = content_key(job.key, self.lexical_s)
                limited.append(replace(job, lexical_s=each_s, limited_key=key))
            else:
                limited.append(job)
        return limited

    def _read(self, job: Job) -> Result | None:
        """Return the record of a job, from the output or another place, and keep it in the output."""
        kind = kind_of(job.data)
        output_folder = record_folder(self.output / job.member.folder, job.protocol)
        other_folders = [
            record_folder(output / job.member.folder, job.protocol) for output in self.other_outputs
        ]
        for folder in (output_folder, *other_folders, *_shared_folder(job)):
            record = None
            # A damaged record is made again.
            with contextlib.suppress(ArtifactError):
                record = kind.read(folder, job)
            if record is not None:
                restored: Result = kind.restored(record, job.data)
                if folder != output_folder or restored is not record:
                    kind.write(output_folder, job, restored)
                return restored
        return None

    def _write(self, job: Job, record: Result) -> None:
        kind = kind_of(job.data)
        kind.write(record_folder(self.output / job.member.folder, job.protocol), job, record)
        if isinstance(record, Record) and record.key == job.limited_key:
            detail(f"{record.model} on {record.task}: {record.about['limited']}")
            return
        for folder in _shared_folder(job):
            # The shared folder is a cache; the run's own record is written.
            with contextlib.suppress(ArtifactError, OSError):
                kind.write(folder, job, record)

    def _report(self, job: Job, done: int, total: int) -> None:
        if self.progress is not None:
            title = model_title(job.member.path, job.member.name)
            self.progress(f"{title} on {job.data.task}", done, total)


def _fits_words(job: Job) -> bool:
    """Return whether a job fits a model without vectors, which takes long."""
    return job.member.path in LEXICAL and kind_of(job.data).fits_words


def _shared_folder(job: Job) -> list[Path]:
    """Return the folder of a record that all runs of this user share; none for a model that has files."""
    if job.member.encoder is not None or split_path(job.member.path)[1] is not None:
        return []
    return [cache_folder() / "evaluation" / job.key]


def run_in_turn(jobs: Sequence[Any], *, load: Load = load_model) -> Iterator[tuple[int, Any]]:
    """Run jobs one after another, each by its `run(load=…)`; a model is loaded once for consecutive jobs."""
    last: tuple[str, SentenceEncoder] | None = None

    def load_once(path: str) -> SentenceEncoder:
        nonlocal last
        if last is None or last[0] != path:
            last = (path, load(path))
        return last[1]

    yield from enumerate(job.run(load=load_once) for job in jobs)
