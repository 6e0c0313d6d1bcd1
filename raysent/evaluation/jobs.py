"""A model and a task -> a record. Jobs know nothing of each other, so they may be done in turn or spread out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from raysent.evaluation import probes
from raysent.evaluation.members import Member, costs_of
from raysent.evaluation.probes.features import task_features
from raysent.evaluation.records import Record, record_of
from raysent.evaluation.tasks import TaskData
from raysent.models import load as load_model
from raysent.models.sentence_encoder import SentenceEncoder

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
    result = probes.fit_probe(features, job.data, protocol=job.protocol, source=job.member.path)
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
