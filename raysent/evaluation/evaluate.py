"""A model and a task -> a record. Jobs know nothing of each other, so they may be done in turn or spread out.

Encode, fit probes, save. In: models and tasks. Out: scores, and per task a record with log-probabilities.

A record is `evaluation/<model>/<task>.json` (protocol, settings, versions, hashes, scores, seconds) and `.npz`
(labels, and per fold rows and log-probabilities; the fitted probe). It is named by the content of the model, the
rows and the settings, so evaluating again what has not changed costs reading it. Protocols other than `fast` have a
folder of their own below the model's, as `evaluation/<model>/senteval-prototyping/<task>.json`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from raysent.evaluation.members import Member, costs_of, expand
from raysent.evaluation.probes.features import features_of, task_features
from raysent.evaluation.protocols import PROTOCOLS, fit_probe, protocol_name
from raysent.evaluation.records import Record, read_record, record_of, write_record
from raysent.evaluation.similarity import SimilarityScore, similarity_scores
from raysent.evaluation.tasks import TaskData, default_tasks, find_task, load_task
from raysent.evaluation.tasks.similarity import SIMILARITY_TASKS
from raysent.models import load as load_model
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.storage import content_key

__all__ = [
    "Load",
    "Member",
    "Progress",
    "Record",
    "Score",
    "SimilarityScore",
    "evaluate",
    "evaluate_similarity",
    "expand",
    "features_of",
    "member_records",
    "read_record",
    "records",
    "task_features",
]


Load = Callable[[str], SentenceEncoder]


@dataclass(frozen=True)
class Job:
    """One model to judge on one task.

    Attributes:
        member: The model.
        data: The task's rows.
        protocol: How to judge.
        key: Names model, rows, protocol and settings together.
    """

    member: Member
    data: TaskData = field(repr=False)
    protocol: str
    key: str


# Jobs -> each job's place among them and its record, in whatever order they are done.
Spread = Callable[[Sequence[Job]], Iterable[tuple[int, Record]]]


def judge(job: Job, *, load: Load = load_model) -> Record:
    """Encode the task's sentences, fit its probe, and return what was found."""
    encoder = load(job.member.path)
    started = time.perf_counter()
    features = task_features(encoder, job.data)
    encoded = time.perf_counter()
    result = fit_probe(features, job.data, protocol=job.protocol, source=job.member.path)
    seconds = {"encode_s": encoded - started, "probe_s": time.perf_counter() - encoded}
    record = record_of(
        result,
        job.data,
        model=job.member.name,
        model_key=job.member.key,
        row_hash=job.data.row_hash,
        protocol=job.protocol,
        key=job.key,
        seconds=seconds,
    )
    return replace(record, about={**record.about, "costs": asdict(costs_of(Path(job.member.path)))})


def judge_in_turn(jobs: Sequence[Job], *, load: Load) -> Iterator[tuple[int, Record]]:
    """Do jobs one after another; a model is loaded once for all its tasks."""
    last: tuple[str, SentenceEncoder] | None = None

    def load_once(path: str) -> SentenceEncoder:
        nonlocal last
        if last is None or last[0] != path:
            last = (path, load(path))
        return last[1]

    yield from enumerate(map(partial(judge, load=load_once), jobs))


# What is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Score:
    """A model's figures on a task: percent of rows right, or of scored pairs Pearson's correlation times 100.

    Attributes:
        model: The member's name in this evaluation.
        task: The task's name.
        protocol: How it was judged.
        validation: On rows that chose.
        test: On rows that chose nothing.
        interval: 95 % bootstrap interval of `test`.
        measures: Further figures of the test rows by name: `f1` in percent; `spearman` times 100; `mse`.
        row_hash: Names the rows' content.
    """

    model: str
    task: str
    protocol: str
    validation: float
    test: float
    interval: tuple[float, float]
    measures: Mapping[str, float]
    row_hash: str

    @classmethod
    def of(cls, record: Record) -> Score:
        """Return a record's figures."""
        low, high = record.about["interval"]
        return cls(
            record.model,
            record.task,
            record.protocol,
            record.validation,
            record.test,
            (low, high),
            record.measures,
            record.row_hash,
        )


def evaluate(
    models: Sequence[str | Path],
    *,
    output: Path,
    tasks: Sequence[str] | None = None,
    data_dir: Path | None = None,
    protocol: str = "fast",
    load: Load | None = None,
    progress: Progress | None = None,
    spread: Spread | None = None,
) -> list[Score]:
    """Score models on tasks.

    Args:
        models: Models' folders, ``hash:DIM``, or a sweep's folder, which stands for its trials that have a model.
        output: Folder of the records; `<model>/<task>.json` go below it.
        tasks: Names of tasks; by default what the data folder holds, without one the embedded tasks.
        data_dir: Folder in SentEval's layout.
        protocol: How to judge.
        load: Path -> encoder; `raysent.models.load` by default.
        progress: Called with what is being done.
        spread: Does the jobs of models and tasks, as over a cluster; by default they are done in turn.

    Returns:
        One score per model and task, in the order given.

    Raises:
        ConfigError: If a task or the protocol is unknown.
        DataError: If a task's files are missing or wrong, or a model gives NaN.
        ArtifactError: If a model cannot be loaded or a record cannot be written.
    """
    tasks = default_tasks(data_dir, scored=True) if tasks is None else tasks
    found = records(
        models,
        output=output,
        tasks=tasks,
        data_dir=data_dir,
        protocol=protocol,
        load=load,
        progress=progress,
        spread=spread,
    )
    return [Score.of(record) for of_member in found.values() for record in of_member]


def evaluate_similarity(
    models: Sequence[str | Path],
    *,
    output: Path,
    tasks: Sequence[str] | None = None,
    data_dir: Path | None = None,
    load: Load | None = None,
    progress: Progress | None = None,
) -> list[SimilarityScore]:
    """Score models' own similarity on tasks of scored pairs, without training; arguments as for `evaluate`.

    By default the tasks are those whose files are in the data folder.
    """
    if tasks is None:
        chosen = [] if data_dir is None else [task for task in SIMILARITY_TASKS.values() if task.is_present(data_dir)]
    else:
        chosen = [SIMILARITY_TASKS[name] for name in tasks]
    if not chosen:
        return []
    report = progress or (lambda *_: None)
    return similarity_scores(
        expand(models), chosen, output=output, data_dir=data_dir, load=load or load_model, progress=report
    )


def records(
    names: Sequence[str | Path],
    *,
    output: Path,
    tasks: Sequence[str] | None = None,
    data_dir: Path | None = None,
    protocol: str = "fast",
    load: Load | None = None,
    progress: Progress | None = None,
    spread: Spread | None = None,
) -> dict[Member, list[Record]]:
    """Return the records behind `evaluate`, made or read, by member; arguments as there."""
    return member_records(
        expand(names),
        output=output,
        tasks=tasks,
        data_dir=data_dir,
        protocol=protocol,
        load=load,
        progress=progress,
        spread=spread,
    )


def member_records(
    members: Sequence[Member],
    *,
    output: Path,
    tasks: Sequence[str] | None = None,
    data_dir: Path | None = None,
    protocol: str = "fast",
    load: Load | None = None,
    progress: Progress | None = None,
    spread: Spread | None = None,
) -> dict[Member, list[Record]]:
    """Return the records of members whose names and keys are known; arguments as for `evaluate`."""
    protocol = protocol_name(protocol)
    rows = _load_tasks(tasks, data_dir)
    plain = PROTOCOLS[protocol].settings()
    every = [
        Job(member, data, protocol, content_key(member.key, data.row_hash, protocol, plain))
        for member in members
        for data in rows
    ]
    places = [output / job.member.folder / protocol_folder(protocol) for job in every]
    done = [read_record(place, job.data.task, key=job.key) for place, job in zip(places, every, strict=True)]
    missing = [number for number, record in enumerate(done) if record is None]
    jobs = [every[number] for number in missing]
    report = progress or (lambda *_: None)
    if jobs:
        report(f"{jobs[0].member.name}: {jobs[0].data.task}", len(every) - len(jobs), len(every))
    judged = judge_in_turn(jobs, load=load or load_model) if spread is None else spread(jobs)
    for count, (place, record) in enumerate(judged, start=1):
        number = missing[place]
        write_record(places[number], record)
        done[number] = record
        report(f"{record.model}: {record.task}", len(every) - len(jobs) + count, len(every))
    report("done", len(every), len(every))
    ordered = iter(record for record in done if record is not None)
    return {member: [next(ordered) for _ in rows] for member in members}


def protocol_folder(protocol: str) -> str:
    """Return the folder of a protocol's records below a model's."""
    return "" if protocol == "fast" else protocol.replace("/", "-")


def _load_tasks(names: Sequence[str] | None, data_dir: Path | None) -> list[TaskData]:
    """Return the rows of the named tasks, or of the default ones; a task named twice is judged once."""
    wanted = default_tasks(data_dir) if names is None else [find_task(name).name for name in names]
    return [load_task(name, data_dir) for name in dict.fromkeys(wanted)]
