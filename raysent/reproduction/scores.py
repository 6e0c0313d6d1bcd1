"""Scores of a paper's models -> its tables beside the reported figures, and verdicts on its claims."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from raysent.config import shipped_path
from raysent.ensembles.task_ensemble import score_methods
from raysent.errors import ConfigError
from raysent.evaluation import Evaluator
from raysent.evaluation.members import Member
from raysent.evaluation.nearest import nearest_codes, nearest_vectors
from raysent.evaluation.records import Record, SimilarityScore
from raysent.evaluation.task import Task
from raysent.evaluation.tasks import find_task, resolve_tasks
from raysent.models import load
from raysent.models.sentence_encoder import SentenceEncoder, normalize_rows
from raysent.reproduction.files import ClaimEntry, PaperFile, TableEntry
from raysent.reproduction.making import Graph
from raysent.reproduction.reported import MEASURE, reported_tables
from raysent.training.outcome import load_reports

Verdict = Literal["reproduced", "refuted at this size", "undecidable", "not run"]
_CONFIDENCE = 0.95
_NUM_QUERIES = 100


class Column(NamedTuple):
    """A column of a table: a task, and what is measured on it.

    Attributes:
        task: The task.
        measure: A measure of its score, such as `f1` or `spearman`, or one of its sets; empty for the score itself.
    """

    task: str
    measure: str = ""

    @classmethod
    def of(cls, text: str) -> Column:
        """Return the column of a table's heading, such as ``MRPC f1``; correlations are Pearson's."""
        task, _, measure = text.partition(" ")
        if measure == MEASURE:
            measure = ""
        return cls(task, measure)


@dataclass(frozen=True)
class TableResult:
    """A reproduced table beside the paper's.

    Attributes:
        number: The table's number in the paper.
        title: What it shows.
        protocol: How models were evaluated.
        tasks: The columns.
        ours: Row -> column -> figure, in percent where it is a part or a correlation.
        reported: Row -> column -> the paper's figure.
        skipped: Row -> why it has no score.
        absent: Tasks among the columns whose files are not there.
        about: What differs from the paper's table.
    """

    number: str
    title: str
    protocol: str
    tasks: tuple[str, ...]
    ours: Mapping[str, Mapping[str, float]]
    reported: Mapping[str, Mapping[str, float]]
    skipped: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    about: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClaimResult:
    """The verdict on a claim.

    Attributes:
        name: The claim's name in its file.
        claim: The claim.
        verdict: What the seeds show.
        better: Score of the arm that should be better, for each seed.
        worse: Score of the other one.
        seeds: The seeds.
        difference: Mean of the paired differences.
        interval: Its 95 % interval.
        margin: What the interval has to lie above: the claim's margin.
        p: Chance of a difference as far from the margin, or further, if the margin were the true one; two-sided.
        reason: Why it was not run, or what is known of the verdict's cause.
    """

    name: str
    claim: str
    verdict: Verdict
    better: tuple[float, ...] = ()
    worse: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    difference: float | None = None
    interval: tuple[float, float] | None = None
    margin: float = 0.0
    p: float | None = None
    reason: str = ""


class Scores:
    """Scores of the models of a graph; each is computed once."""

    def __init__(self, graph: Graph) -> None:
        """Keep records in the graph's folder."""
        self._graph = graph
        self._senteval = graph.data / "senteval"

    def of_model(
        self, name: str, seed: int, *, tasks: Sequence[str], protocol: str
    ) -> dict[str, float]:
        """Return a made model's test score on each task, in percent.

        Raises:
            RaysentError: If a task's files are missing, or the protocol is unknown.
        """
        model = self._graph.paper.models[name]
        scores: dict[str, float] = {}
        if model.ensemble is None:
            of_tasks = self._results(name, seed, tasks, protocol)
            for task, record in zip(tasks, of_tasks, strict=True):
                scores[task] = float(_score(record).test)
            return scores
        of_members = [self._results(member, seed, tasks, protocol) for member in model.ensemble]
        for task, *of_task in zip(tasks, *of_members, strict=True):
            records = [record for record in of_task if isinstance(record, Record)]
            scores[task] = score_methods(records, [model.method])[model.method].test
        return scores

    def of_columns(
        self,
        name: str,
        seed: int,
        *,
        columns: Sequence[str],
        protocol: str,
        component: Literal["stored", "tested"] = "stored",
    ) -> dict[str, float]:
        """Return a made model's figure in each column of a table; none in one that its scores have not.

        Args:
            name: The model.
            seed: Its seed.
            columns: Tasks, or measures of tasks.
            protocol: How probes are fitted.
            component: As of a `TableEntry`.

        Raises:
            RaysentError: As `of_model`.
        """
        parsed = {heading: Column.of(heading) for heading in columns}
        tasks = list(dict.fromkeys(column.task for column in parsed.values()))
        figures: dict[str, float] = {}
        if self._graph.paper.models[name].ensemble is not None:
            of_tasks = self.of_model(name, seed, tasks=tasks, protocol=protocol)
            # Of an ensemble the test score alone is known.
            for heading, column in parsed.items():
                if not column.measure:
                    figures[heading] = of_tasks[column.task]
            return figures
        tested: list[str] = []
        if component == "tested":
            tested = [task for task in tasks if find_task(task).scoring == "similarity"]
        stored = [task for task in tasks if task not in tested]
        records: list[object] = []
        if stored:
            records += self._results(name, seed, stored, protocol)
        if tested:
            member = self._graph.member_of_tested(name, seed)
            records += self._results_of(member, tested, protocol)
        by_task = dict(zip([*stored, *tested], map(_score, records), strict=True))
        for heading, column in parsed.items():
            figure = figure_of(by_task[column.task], column.measure)
            if figure is not None:
                figures[heading] = figure
        return figures

    def of_arm(self, claim: ClaimEntry, name: str, seed: int, *, protocol: str) -> float:
        """Return the score of a claim's arm, as the claim says.

        Returns:
            The mean over tasks, the claim's metric at the last report or the mean recall of images, in percent; or
            queries in a millisecond.

        Raises:
            RaysentError: As `of_model`, or if the run has no such metric.
        """
        if claim.searched is not None:
            member = self._graph.member(name, seed)
            return search_speed(member.encoder or load(member.path), claim.searched, seed=seed)
        folder = self._graph.folder(name, seed)
        if claim.images:
            return _image_recall(folder, self._graph.data / claim.images, seed=seed)
        if not claim.metric:
            scores = self.of_model(name, seed, tasks=claim.tasks, protocol=protocol)
            return float(np.mean(list(scores.values())))
        metrics: Mapping[str, float] = {}
        reports = load_reports(folder)
        if reports:
            metrics = reports[-1].metrics
        if claim.metric not in metrics:
            names = ", ".join(metrics) or "none, as it is not trained"
            raise ConfigError(f"metric {claim.metric}: must be one of {name}'s: {names}")
        return 100 * metrics[claim.metric]

    def _results(self, name: str, seed: int, tasks: Sequence[str], protocol: str) -> list[object]:
        return self._results_of(self._graph.member(name, seed), tasks, protocol)

    def _results_of(self, member: Member, tasks: Sequence[str], protocol: str) -> list[object]:
        evaluator = Evaluator(self._graph.output / "evaluation", self._senteval, protocol)
        return list(evaluator.results([member], self.tasks(tasks))[member])

    def tasks(self, names: Sequence[str]) -> list[Task]:
        """Return tasks by name."""
        return resolve_tasks(list(names), self._senteval)

    def present(self, names: Sequence[str]) -> list[str]:
        """Return those of tasks, or columns of tasks, whose files exist."""
        return [
            name for name in names if find_task(Column.of(name).task).is_present(self._senteval)
        ]


def search_speed(encoder: SentenceEncoder, num_rows: int, *, seed: int) -> float:
    """Return the queries in a millisecond whose ten nearest rows are found exactly, the best of five searches for 100.

    Rows are random ones of the encoder's form, as the time does not depend on their values: packed bits, or vectors.
    """
    dim = encoder.get_sentence_embedding_dimension()
    generator = np.random.default_rng(seed)
    rows: Any
    search: Callable[..., object]
    if encoder.similarity_measure == "hamming":
        search = nearest_codes
        num_bytes = -(-dim // 8)
        rows = generator.integers(0, 256, (num_rows, num_bytes), dtype=np.uint8)
    else:
        search = nearest_vectors
        rows = normalize_rows(generator.normal(size=(num_rows, dim)).astype(np.float32))
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        search(rows, rows[:_NUM_QUERIES], k=10)
        seconds.append(time.perf_counter() - begun)
    return _NUM_QUERIES / (1000 * min(seconds))


def _image_recall(model: Path, folder: Path, *, seed: int) -> float:
    """Return the mean of a model's recalls at 1, 5 and 10 of captions and of images, in percent; protocol `kiros`.

    Raises:
        DataError: If `images.npy` or `captions.tsv` of the folder is missing or wrong.
    """
    spec = spec_from_file_location("image_ranking", shipped_path("papers") / "image_ranking.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018 - a file of the package
    script = sys.modules["image_ranking"] = module_from_spec(spec)
    spec.loader.exec_module(script)
    splits = script.read_splits(folder / "images.npy", folder / "captions.tsv")
    recalls = script.rank(str(model), splits, script.PROTOCOLS["kiros"], seed=seed, fold_size=1000)
    return float(recalls[:, :3].mean())


def _score(record: object) -> Any:
    """Return the scores of a record; of a task without a probe there is no other record."""
    if isinstance(record, Record):
        return record.score
    return record


def figure_of(score: Any, measure: str) -> float | None:
    """Return a measure of a score, or its test score where none is named; None where it has no such measure."""
    if isinstance(score, SimilarityScore):
        if measure in score.by_set:
            return score.by_set[measure]
        if not measure and "accuracy" in score.measures:
            return score.measures["accuracy"]
        if measure in ("pearson_weighted", "spearman", "spearman_weighted"):
            return float(getattr(score, measure))
    figure = score.test
    if measure:
        figure = score.measures.get(measure)
    if figure is None:
        return None
    return float(figure)


def reported_rows(paper: PaperFile, number: str, table: TableEntry) -> dict[str, dict[str, float]]:
    """Return the paper's figures of a table's rows, by row and task."""
    rows: dict[str, dict[str, float]] = {}
    for reported in reported_tables():
        if (reported.paper, reported.table) != (paper.paper, number):
            continue
        columns = [Column.of(heading) for heading in reported.columns]
        for name, row in table.models().items():
            figures = reported.rows.get(row.reported or name, ())
            # A row may end early, and a figure may be missing.
            by_column = dict(zip(columns, figures, strict=False))
            of_row = rows.setdefault(name, {})
            for heading in table.columns:
                figure = by_column.get(Column.of(heading))
                if figure is not None:
                    of_row[heading] = figure
    return rows


def claim_result(
    name: str,
    entry: ClaimEntry,
    *,
    better: Sequence[float],
    worse: Sequence[float],
    seeds: Sequence[int],
) -> ClaimResult:
    """Return the verdict of paired scores: on which side of the margin Student's interval of their difference lies.

    Args:
        name: The claim's name.
        entry: The claim.
        better: Score of the arm that should be better, for each seed.
        worse: Score of the other arm, for the same seeds.
        seeds: The seeds.
    """
    margin = entry.margin
    mean, low, high, p = _paired_interval(np.asarray(better) - np.asarray(worse), margin)
    verdict: Verdict = "undecidable"
    if low > margin:
        verdict = "reproduced"
    elif high < margin:
        verdict = "refuted at this size"
    return ClaimResult(
        name=name,
        claim=entry.claim,
        verdict=verdict,
        better=tuple(map(float, better)),
        worse=tuple(map(float, worse)),
        seeds=tuple(seeds),
        difference=mean,
        interval=(low, high),
        margin=margin,
        p=p,
        reason=entry.why,
    )


def _paired_interval(differences: np.ndarray, margin: float) -> tuple[float, float, float, float]:
    """Return the mean of paired differences [seeds], its 95 % interval, and p of the margin, by Student's t."""
    from scipy.stats import t as student  # noqa: PLC0415 - it takes seconds to import, and most commands do without

    mean = float(differences.mean())
    num_seeds = len(differences)
    error = float(differences.std(ddof=1) / np.sqrt(num_seeds))
    half = float(student.ppf((1 + _CONFIDENCE) / 2, num_seeds - 1)) * error
    if error:
        p = float(2 * student.sf(abs(mean - margin) / error, num_seeds - 1))
    else:
        # Equal differences leave no chance: the margin is the true one, or it is not.
        p = float(mean == margin)
    return mean, mean - half, mean + half, p
